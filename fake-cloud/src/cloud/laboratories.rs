//! One CML for each running instance, at the instance's own address.

use std::collections::HashMap;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::wiring;
use crate::cml::{self, Authority, Laboratories, System};
use crate::service::Service;
use crate::world::{InstanceState, Region, World};

/// How often instances that are on their way to another state are looked at again, on the world's clock.
const LOOK_AGAIN: Duration = Duration::from_millis(500);
/// At most this many instances have a CML at the same time: each has a socket, and a laptop has only so many.
const MOST: usize = 512;

/// How often an address that is still taken is tried…
const ATTEMPTS: usize = 100;
/// …and how long to wait in between.
const BREATHER: Duration = Duration::from_millis(10);

/// An instance's CML: its state outlives a stop, its socket does not.
struct Laboratory {
    system: System,
    listening: Option<Listening>,
}

/// A CML that can be reached.
struct Listening {
    address: Ipv4Addr,
    stop: watch::Sender<bool>,
}

/// Switches the CML of every instance on and off as the instance runs and stops, until `shutdown`.
pub(super) async fn keep(
    world: Arc<World>,
    authority: Authority,
    options: cml::Options,
    known: Laboratories,
    port: u16,
    shutdown: impl Future<Output = ()>,
) {
    let mut orders = world.orders();
    let mut laboratories: HashMap<String, Laboratory> = HashMap::new();
    let mut servers = JoinSet::new();
    let options = cml::Options { hook: wiring::oversee(&world, Service::Cml), ..options };
    tokio::pin!(shutdown);
    loop {
        orders.mark_unchanged();
        let (running, in_motion) = look(&world);
        laboratories.retain(|id, laboratory| {
            if !known.is_current(id, &laboratory.system) {
                // The world began anew, and may have an instance of the same id.
                switch_off(laboratory);
                return false;
            }
            let address = running.get(id);
            if laboratory.listening.as_ref().is_some_and(|listening| Some(&listening.address) != address) {
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
        for (id, address) in running.into_iter().take(MOST) {
            let make = || {
                let instance_id = Some(id.clone());
                let options = cml::Options { instance_id, address: address.to_string(), ..options.clone() };
                System::new(world.clock().clone(), options)
            };
            let laboratory = laboratories
                .entry(id.clone())
                .or_insert_with(|| Laboratory { system: known.find_or_insert(&id, make), listening: None });
            if laboratory.listening.is_none() {
                switch_on(laboratory, &authority, address, port, &mut servers);
                known.note_address(&id, laboratory.listening.as_ref().map(|listening| listening.address));
            }
        }
        tokio::select! {
            () = &mut shutdown => break,
            _ = orders.changed() => {}
            () = world.clock().sleep(LOOK_AGAIN), if in_motion => {}
        }
    }
    laboratories.values_mut().for_each(switch_off);
    while servers.join_next().await.is_some() {}
}

/// The running instances with their addresses, and whether others will run or stop by themselves.
fn look(world: &World) -> (HashMap<String, Ipv4Addr>, bool) {
    world.with_ec2(|ec2, now| {
        let mut running = HashMap::new();
        let mut in_motion = false;
        for instance in ec2.regions().flat_map(Region::instances) {
            match instance.state(now) {
                InstanceState::Running => running.extend(instance.public_ip(now).map(|ip| (instance.id.clone(), ip))),
                InstanceState::Pending | InstanceState::Stopping | InstanceState::ShuttingDown => in_motion = true,
                InstanceState::Stopped | InstanceState::Terminated => {}
            }
        }
        (running, in_motion)
    })
}

fn switch_on(
    laboratory: &mut Laboratory,
    authority: &Authority,
    address: Ipv4Addr,
    port: u16,
    servers: &mut JoinSet<()>,
) {
    // Without a certificate nobody could trust it; the next look tries again.
    let Ok(certificate) = authority.issue(IpAddr::V4(address)) else { return };
    let stop = watch::Sender::new(false);
    let stopping = stop.subscribe();
    let system = laboratory.system.clone();
    system.switch_on();
    servers.spawn(async move {
        let socket = SocketAddr::new(IpAddr::V4(address), port);
        for _ in 0..ATTEMPTS {
            let mut stopped = stopping.clone();
            let stopped = async move { drop(stopped.wait_for(|stop| *stop).await) };
            match cml::serve_tls_at(socket, system.clone(), certificate.clone(), stopped).await {
                // After a reset, whoever had the address before may still be on the way out.
                Err(error) if error.kind() == ErrorKind::AddrInUse && !*stopping.borrow() => {
                    tokio::time::sleep(BREATHER).await;
                }
                Ok(()) | Err(_) => return,
            }
        }
    });
    laboratory.listening = Some(Listening { address, stop });
}

fn switch_off(laboratory: &mut Laboratory) {
    if let Some(listening) = laboratory.listening.take() {
        listening.stop.send_replace(true);
        laboratory.system.switch_off();
    }
}
