//! One CML for each running instance, at the instance's own address.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::wiring;
use crate::cml::{self, Authority, Certificate, Laboratories, Presence, System};
use crate::world::{InstanceState, REGIONS, Region, World};

/// How often instances that are on their way to another state are looked at again, on the world's clock.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// How often an address that is taken is tried before that is a problem: after a reset, whoever had the address before
/// may still be on the way out.
const ATTEMPTS: usize = 100;
/// How long to wait in between…
const BREATHER: Duration = Duration::from_millis(10);
/// …and once it is a problem.
const PATIENCE: Duration = Duration::from_secs(1);

/// Where every CML is found, and how many there may be.
#[derive(Debug, Clone, Copy)]
pub(super) struct Site {
    pub(super) port: u16,
    pub(super) limit: usize,
}

/// An instance's CML: its state outlives a stop, its socket does not.
struct Laboratory {
    system: System,
    listening: Option<Listening>,
}

/// A CML that is to be reached.
struct Listening {
    address: Ipv4Addr,
    stop: watch::Sender<bool>,
}

/// An instance that runs.
#[derive(Debug, Clone, Copy)]
struct Running {
    address: Ipv4Addr,
    since: DateTime<Utc>,
}

/// Switches the CML of every instance on and off as the instance runs and stops, until `shutdown`.
pub(super) async fn keep(
    world: Arc<World>,
    authority: Authority,
    options: cml::Options,
    known: Laboratories,
    site: Site,
    shutdown: impl Future<Output = ()>,
) {
    let mut orders = world.orders();
    let mut laboratories: BTreeMap<String, Laboratory> = BTreeMap::new();
    let mut servers = JoinSet::new();
    let options = cml::Options { hook: wiring::oversee_cml(&world, options.version.clone()), ..options };
    tokio::pin!(shutdown);
    loop {
        orders.mark_unchanged();
        // Before the look: a clock that is moved right after it must not be slept past.
        let look_again = world.clock().now() + LOOK_AGAIN;
        let (running, in_motion) = look(&world);
        laboratories.retain(|id, laboratory| {
            if !known.is_current(id, &laboratory.system) {
                // The world began anew, and may have an instance of the same id.
                switch_off(laboratory);
                return false;
            }
            let address = running.get(id).map(|running| running.address);
            if laboratory.listening.as_ref().is_some_and(|listening| Some(listening.address) != address) {
                switch_off(laboratory);
                known.note_address(id, None);
            }
            let exists =
                address.is_some() || world.with_ec2(|ec2, _| ec2.regions().any(|region| region.find(id).is_some()));
            if !exists {
                known.remove(id);
            }
            exists
        });
        let mut on = laboratories.values().filter(|laboratory| laboratory.listening.is_some()).count();
        for (id, Running { address, since }) in running {
            let make = || {
                let instance_id = Some(id.clone());
                let options = cml::Options { instance_id, address: address.to_string(), ..options.clone() };
                System::new(world.clock().clone(), options)
            };
            let laboratory = laboratories
                .entry(id.clone())
                .or_insert_with(|| Laboratory { system: known.find_or_insert(&id, make), listening: None });
            if laboratory.listening.is_some() {
                continue;
            }
            let keeper =
                Keeper { world: Arc::clone(&world), known: known.clone(), id, system: laboratory.system.clone() };
            if on >= site.limit {
                keeper.report(format!("{} CMLs are on already, which is the limit; --cml-limit raises it", site.limit));
                continue;
            }
            match authority.issue(IpAddr::V4(address)) {
                Ok(certificate) => {
                    on += 1;
                    known.note_address(&keeper.id, Some(address));
                    // From when the instance ran, not from when somebody looked: a clock that is moved by hand may have
                    // come a long way since.
                    keeper.system.switch_on_at(since);
                    let stop = watch::Sender::new(false);
                    let socket = SocketAddr::new(IpAddr::V4(address), site.port);
                    servers.spawn(keeper.serve(socket, certificate, stop.subscribe()));
                    laboratory.listening = Some(Listening { address, stop });
                    // A certificate takes its time, and a fleet that starts at once needs hundreds.
                    tokio::task::yield_now().await;
                }
                Err(error) => keeper.report(format!("there is no certificate for {address}: {error}")),
            }
        }
        tokio::select! {
            () = &mut shutdown => break,
            _ = orders.changed() => {}
            () = world.clock().sleep_until(look_again), if in_motion => {}
            Some(_) = servers.join_next(), if !servers.is_empty() => {}
        }
    }
    laboratories.values_mut().for_each(switch_off);
    while servers.join_next().await.is_some() {}
}

/// The running instances, and whether others will run or stop by themselves.
fn look(world: &World) -> (BTreeMap<String, Running>, bool) {
    world.with_ec2(|ec2, now| {
        let mut running = BTreeMap::new();
        let mut in_motion = false;
        for name in REGIONS {
            // Asked for by name, a region lets those depart that are over.
            drop(ec2.region(name, now));
        }
        for instance in ec2.regions().flat_map(Region::instances) {
            match instance.state(now) {
                InstanceState::Running => {
                    let found = instance.public_ip(now).zip(instance.running_since(now));
                    running.extend(found.map(|(address, since)| (instance.id.clone(), Running { address, since })));
                }
                InstanceState::Pending | InstanceState::Stopping | InstanceState::ShuttingDown => in_motion = true,
                InstanceState::Stopped | InstanceState::Terminated => {}
            }
        }
        (running, in_motion)
    })
}

/// Whoever keeps one CML on its socket.
struct Keeper {
    world: Arc<World>,
    known: Laboratories,
    id: String,
    system: System,
}

impl Keeper {
    /// Listens as soon as the system would answer, and serves it until it is stopped. An address that is taken by
    /// somebody else is reported, and tried again until it is free.
    async fn serve(self, socket: SocketAddr, certificate: Certificate, mut stopping: watch::Receiver<bool>) {
        for attempt in 1_usize.. {
            let stopped = stopping.wait_for(|stop| *stop);
            tokio::select! {
                _ = stopped => return,
                () = self.system.answers() => {}
            }
            let mut until = stopping.clone();
            match TcpListener::bind(socket).await {
                Ok(listener) => {
                    self.note(Presence::Listening);
                    let stopped = async move { drop(until.wait_for(|stop| *stop).await) };
                    cml::serve_tls(listener, self.system.clone(), certificate, stopped).await;
                    self.note(Presence::Off);
                    return;
                }
                Err(error) => {
                    if attempt >= ATTEMPTS {
                        self.report(format!("cannot listen on {socket}: {error}"));
                    }
                    let pause = if attempt < ATTEMPTS { BREATHER } else { PATIENCE };
                    // Stopped or not, the next round finds out.
                    drop(tokio::time::timeout(pause, until.wait_for(|stop| *stop)).await);
                }
            }
        }
    }

    fn note(&self, presence: Presence) -> bool {
        self.known.note_presence(&self.id, &self.system, presence)
    }

    /// Says why nobody can reach it, once.
    fn report(&self, why: String) {
        if self.note(Presence::Prevented(why.clone())) {
            let (recorder, now) = (self.world.recorder(), self.world.clock().now());
            recorder.notice(now, format!("the CML of {} cannot be reached: {why}", self.id));
        }
    }
}

fn switch_off(laboratory: &mut Laboratory) {
    if let Some(listening) = laboratory.listening.take() {
        listening.stop.send_replace(true);
        laboratory.system.switch_off();
    }
}
