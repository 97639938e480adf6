//! One CML for each running instance, at the instance's own address.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::service_faults;
use crate::cml::{self, Authority, Certificate, CmlServer, CmlServers, ListenState, ServerConfig};
use crate::world::{Course, Ec2, News, World};

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

/// Switches the CML of every instance on and off as the instance runs and stops, until `shutdown`.
pub(super) async fn keep(
    world: Arc<World>,
    authority: Authority,
    options: cml::Options,
    known: CmlServers,
    site: Site,
    shutdown: impl Future<Output = ()>,
) {
    let clock = world.clock().clone();
    let orders = world.orders();
    let middleware = service_faults::cml_middleware(&world, options.version.clone());
    let options = Arc::new(cml::Options { middleware, ..options });
    let mut district = District {
        world,
        authority,
        options,
        known,
        site,
        laboratories: BTreeMap::new(),
        waiting: BTreeSet::new(),
        new: Vec::new(),
        due: BTreeSet::new(),
        on: 0,
        servers: JoinSet::new(),
    };
    district.look_at_all();
    tokio::pin!(shutdown);
    loop {
        district.switch_on_waiting().await;
        let next = district.due.first().map(|(moment, _)| *moment);
        let moment_comes = async {
            match next {
                Some(moment) => clock.sleep_until(moment).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = &mut shutdown => break,
            () = orders.changed() => district.hear(&orders.take()),
            () = moment_comes => district.look_at_due(),
            Some(_) = district.servers.join_next(), if !district.servers.is_empty() => {}
        }
    }
    district.laboratories.values_mut().for_each(switch_off);
    while district.servers.join_next().await.is_some() {}
}

/// All CMLs, and what they wait for. Instances are named by their place in the order of launches.
struct District {
    world: Arc<World>,
    authority: Authority,
    options: Arc<cml::Options>,
    known: CmlServers,
    site: Site,
    laboratories: BTreeMap<u64, Laboratory>,
    /// Those that should be on and are not: there are too many, or something went wrong.
    waiting: BTreeSet<u64>,
    /// Those of them that nobody has been told about yet.
    new: Vec<u64>,
    /// When which instance is to be looked at again, because time alone changes it.
    due: BTreeSet<(DateTime<Utc>, Place)>,
    on: usize,
    servers: JoinSet<()>,
}

/// Where an instance is found.
type Place = (u64, &'static str);

/// An instance's CML: its state outlives a stop, its socket does not.
struct Laboratory {
    id: String,
    number: u64,
    running: Option<Running>,
    listening: Option<Listening>,
}

/// A CML that is to be reached.
struct Listening {
    system: CmlServer,
    address: Ipv4Addr,
    stop: watch::Sender<bool>,
}

/// An instance that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Running {
    address: Ipv4Addr,
    since: DateTime<Utc>,
}

/// How an instance stands.
enum Standing {
    Gone,
    Down,
    Up { id: String, running: Running },
}

impl District {
    fn hear(&mut self, news: &News) {
        if news.began_anew {
            self.clear();
        }
        for told in &news.told {
            self.look_at((told.sequence, told.region));
        }
    }

    /// The world began anew, and may have instances of the same ids.
    fn clear(&mut self) {
        for (_, mut laboratory) in std::mem::take(&mut self.laboratories) {
            switch_off(&mut laboratory);
            if self.known.is_current(&laboratory.id, laboratory.number) {
                self.known.remove(&laboratory.id);
            }
        }
        self.waiting.clear();
        self.new.clear();
        self.due.clear();
        self.on = 0;
    }

    fn look_at_all(&mut self) {
        let all = self.world.with_ec2(|ec2, _| {
            let places = ec2.regions().flat_map(|region| region.instances().map(|it| (it.sequence, region.name)));
            places.collect::<Vec<Place>>()
        });
        all.into_iter().for_each(|place| self.look_at(place));
    }

    fn look_at_due(&mut self) {
        let now = self.world.clock().now();
        while self.due.first().is_some_and(|(moment, _)| *moment <= now) {
            if let Some((_, place)) = self.due.pop_first() {
                self.look_at(place);
            }
        }
    }

    /// Sees to it that the CML of an instance is where the instance is.
    fn look_at(&mut self, place: Place) {
        let sequence = place.0;
        let visible = self.world.settings().delays.terminated_visible;
        let (standing, again) = self.world.with_ec2(|ec2, now| look(ec2, place, visible, now));
        self.due.extend(again.map(|moment| (moment, place)));
        let running = match &standing {
            Standing::Gone | Standing::Down => None,
            Standing::Up { running, .. } => Some(*running),
        };
        if let Some(laboratory) = self.laboratories.get_mut(&sequence) {
            laboratory.running = running;
            let address = running.map(|running| running.address);
            if laboratory.listening.as_ref().is_some_and(|listening| Some(listening.address) != address) {
                switch_off(laboratory);
                self.known.set_address(&laboratory.id, None);
                self.on -= 1;
            }
            if laboratory.listening.is_some() {
                return;
            }
        }
        self.waiting.remove(&sequence);
        match standing {
            Standing::Down => {}
            Standing::Gone => {
                if let Some(laboratory) = self.laboratories.remove(&sequence) {
                    self.known.remove(&laboratory.id);
                }
            }
            Standing::Up { id, running } => {
                self.house(sequence, id, running);
                self.waiting.insert(sequence);
                self.new.push(sequence);
            }
        }
    }

    /// Gives an instance that runs a CML, if it has none.
    fn house(&mut self, sequence: u64, id: String, running: Running) {
        let Self { laboratories, known, options, world, .. } = self;
        laboratories.entry(sequence).or_insert_with(|| {
            let (clock, options) = (world.clock().clone(), Arc::clone(options));
            let at = clock.now();
            let number = known.register(&id, ServerConfig { clock, options, address: running.address, at });
            Laboratory { id, number, running: Some(running), listening: None }
        });
    }

    /// Switches those on that wait for it, in the order of launches, as far as there is room, and says so of the others.
    async fn switch_on_waiting(&mut self) {
        let mut tried = 0;
        while self.on < self.site.limit
            && let Some(sequence) = self.waiting.range(tried..).next().copied()
        {
            tried = sequence + 1;
            self.switch_on(sequence);
            // A certificate takes its time, and a fleet that starts at once needs hundreds.
            tokio::task::yield_now().await;
        }
        let is_full = self.on >= self.site.limit;
        for sequence in std::mem::take(&mut self.new) {
            if is_full && self.waiting.contains(&sequence) {
                self.report_limit(sequence);
            }
        }
    }

    fn switch_on(&mut self, sequence: u64) {
        let Some(laboratory) = self.laboratories.get_mut(&sequence) else { return };
        let Some(Running { address, since }) = laboratory.running else { return };
        let Laboratory { id, number, .. } = laboratory;
        let Some(system) = self.known.find(id) else { return };
        let (world, known) = (Arc::clone(&self.world), self.known.clone());
        let keeper = Keeper { world, known, id: id.clone(), number: *number, system: system.clone() };
        match self.authority.issue(IpAddr::V4(address)) {
            Ok(certificate) => {
                self.on += 1;
                self.waiting.remove(&sequence);
                self.known.set_address(&keeper.id, Some(address));
                // From when the instance ran, not from when somebody looked: a clock that is moved by hand may have come
                // a long way since.
                keeper.system.power_on_at(since);
                let stop = watch::Sender::new(false);
                let socket = SocketAddr::new(IpAddr::V4(address), self.site.port);
                self.servers.spawn(keeper.serve(socket, certificate, stop.subscribe()));
                laboratory.listening = Some(Listening { system, address, stop });
            }
            Err(error) => keeper.report(format!("there is no certificate for {address}: {error}")),
        }
    }

    fn report_limit(&self, sequence: u64) {
        if let Some(Laboratory { id, number, .. }) = self.laboratories.get(&sequence) {
            let why = format!("{} CMLs are on already, which is the limit; --cml-limit raises it", self.site.limit);
            report(&self.world, &self.known, id, *number, why);
        }
    }
}

/// How an instance stands, and when that changes by itself.
fn look(
    ec2: &mut Ec2,
    (sequence, region): Place,
    terminated_visible: Duration,
    now: DateTime<Utc>,
) -> (Standing, Option<DateTime<Utc>>) {
    let gone = (Standing::Gone, None);
    // Asked for by name, a region lets those depart that are over.
    let Ok(region) = ec2.region(region, now) else { return gone };
    let Some(instance) = region.at(sequence) else { return gone };
    match instance.course {
        Course::Up { running_at } if running_at <= now => {
            let running = Running { address: instance.assigned_ip, since: running_at };
            (Standing::Up { id: instance.id.clone(), running }, None)
        }
        Course::Up { running_at } => (Standing::Down, Some(running_at)),
        Course::Down { .. } => (Standing::Down, None),
        Course::Out { terminated_at, .. } => {
            let visible = TimeDelta::from_std(terminated_visible).ok();
            (Standing::Down, visible.and_then(|visible| terminated_at.checked_add_signed(visible)))
        }
    }
}

/// Whoever keeps one CML on its socket.
struct Keeper {
    world: Arc<World>,
    known: CmlServers,
    id: String,
    number: u64,
    system: CmlServer,
}

impl Keeper {
    /// Listens as soon as the system would answer, and serves it until it is stopped. An address that is taken by
    /// somebody else is reported, and tried again until it is free.
    async fn serve(self, socket: SocketAddr, certificate: Certificate, mut stopping: watch::Receiver<bool>) {
        for attempt in 1_usize.. {
            let stopped = stopping.wait_for(|stop| *stop);
            tokio::select! {
                _ = stopped => return,
                () = self.system.wait_until_listening() => {}
            }
            let mut until = stopping.clone();
            match TcpListener::bind(socket).await {
                Ok(listener) => {
                    self.note(ListenState::Listening);
                    let stopped = async move { drop(until.wait_for(|stop| *stop).await) };
                    cml::serve_tls(listener, self.system.clone(), certificate, stopped).await;
                    self.note(ListenState::Off);
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

    fn note(&self, presence: ListenState) -> bool {
        self.known.set_listen_state(&self.id, self.number, presence)
    }

    /// Says why nobody can reach it, once.
    fn report(&self, why: String) {
        report(&self.world, &self.known, &self.id, self.number, why);
    }
}

fn report(world: &World, known: &CmlServers, id: &str, number: u64, why: String) {
    if known.set_listen_state(id, number, ListenState::Prevented(why.clone())) {
        world.request_log().notify(world.clock().now(), format!("the CML of {id} cannot be reached: {why}"));
    }
}

fn switch_off(laboratory: &mut Laboratory) {
    if let Some(listening) = laboratory.listening.take() {
        listening.stop.send_replace(true);
        listening.system.power_off();
    }
}
