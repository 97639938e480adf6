//! Runs one CML server per running instance, on the public address of the instance.

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
use crate::world::{Changes, Ec2, Lifecycle, World};

/// Number of attempts to bind an address before the failure is reported. After a reset, the previous server may not
/// have released the address yet.
const QUIET_ATTEMPTS: usize = 100;
/// Pause between attempts before the failure is reported.
const SHORT_PAUSE: Duration = Duration::from_millis(10);
/// Pause between attempts after the failure was reported.
const LONG_PAUSE: Duration = Duration::from_secs(1);

/// Limits of the supervisor.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// Port of every CML server.
    pub(super) port: u16,
    /// Maximum number of servers that listen at the same time.
    pub(super) servers: usize,
}

/// Starts and stops CML servers with their instances, until `shutdown` resolves.
pub(super) async fn run(
    world: Arc<World>,
    authority: Authority,
    options: cml::Options,
    registry: CmlServers,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) {
    let clock = world.clock().clone();
    let feed = world.subscribe();
    let middleware = service_faults::cml_middleware(&world, options.version.clone());
    let options = Arc::new(cml::Options { middleware, ..options });
    let mut supervisor = Supervisor {
        world,
        authority,
        options,
        registry,
        limits,
        servers: BTreeMap::new(),
        waiting: BTreeSet::new(),
        unreported: Vec::new(),
        timers: BTreeSet::new(),
        listening: 0,
        tasks: JoinSet::new(),
    };
    supervisor.sync_all();
    tokio::pin!(shutdown);
    loop {
        supervisor.start_waiting().await;
        let next = supervisor.timers.first().map(|(due, _)| *due);
        let timer = async {
            match next {
                Some(due) => clock.sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = &mut shutdown => break,
            () = feed.changed() => supervisor.apply(&feed.take()),
            () = timer => supervisor.sync_due(),
            Some(_) = supervisor.tasks.join_next(), if !supervisor.tasks.is_empty() => {}
        }
    }
    supervisor.servers.values_mut().for_each(power_off);
    while supervisor.tasks.join_next().await.is_some() {}
}

/// State of all CML servers. Instances are identified by their position in launch order.
struct Supervisor {
    world: Arc<World>,
    authority: Authority,
    options: Arc<cml::Options>,
    registry: CmlServers,
    limits: Limits,
    servers: BTreeMap<u64, Server>,
    /// Servers of running instances that do not listen, because the limit is reached or a certificate failed.
    waiting: BTreeSet<u64>,
    /// Waiting servers for which the limit has not been reported yet.
    unreported: Vec<u64>,
    /// Times at which the state of an instance changes without a request.
    timers: BTreeSet<(DateTime<Utc>, InstanceRef)>,
    /// Number of servers that were started and not stopped.
    listening: usize,
    tasks: JoinSet<()>,
}

/// Sequence and region of an instance.
type InstanceRef = (u64, &'static str);

/// CML server of an instance. Its state survives a stop of the instance, its socket does not.
struct Server {
    id: String,
    number: u64,
    running: Option<Running>,
    listener: Option<Listener>,
}

/// A started server.
struct Listener {
    server: CmlServer,
    address: Ipv4Addr,
    stop: watch::Sender<bool>,
}

/// Public address and start time of a running instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Running {
    address: Ipv4Addr,
    since: DateTime<Utc>,
}

/// State of an instance as far as its CML server depends on it.
enum InstanceStatus {
    Gone,
    NotRunning,
    Running { id: String, running: Running },
}

impl Supervisor {
    fn apply(&mut self, changes: &Changes) {
        if changes.was_reset {
            self.clear();
        }
        for change in &changes.instances {
            self.sync((change.sequence, change.region));
        }
    }

    /// Stops all servers. A reset world may contain instances with the same ids.
    fn clear(&mut self) {
        for (_, mut server) in std::mem::take(&mut self.servers) {
            power_off(&mut server);
            if self.registry.is_current(&server.id, server.number) {
                self.registry.remove(&server.id);
            }
        }
        self.waiting.clear();
        self.unreported.clear();
        self.timers.clear();
        self.listening = 0;
    }

    fn sync_all(&mut self) {
        let all = self.world.with_ec2(|ec2, _| {
            let instances = ec2.regions().flat_map(|region| region.instances().map(|it| (it.sequence, region.name)));
            instances.collect::<Vec<InstanceRef>>()
        });
        all.into_iter().for_each(|instance| self.sync(instance));
    }

    fn sync_due(&mut self) {
        let now = self.world.clock().now();
        while self.timers.first().is_some_and(|(due, _)| *due <= now) {
            if let Some((_, instance)) = self.timers.pop_first() {
                self.sync(instance);
            }
        }
    }

    /// Brings the CML server of an instance in line with the state of the instance.
    fn sync(&mut self, instance: InstanceRef) {
        let sequence = instance.0;
        let visible = self.world.settings().delays.terminated_visible;
        let (status, next_change) = self.world.with_ec2(|ec2, now| instance_status(ec2, instance, visible, now));
        self.timers.extend(next_change.map(|due| (due, instance)));
        let running = match &status {
            InstanceStatus::Gone | InstanceStatus::NotRunning => None,
            InstanceStatus::Running { running, .. } => Some(*running),
        };
        if let Some(server) = self.servers.get_mut(&sequence) {
            server.running = running;
            let address = running.map(|running| running.address);
            if server.listener.as_ref().is_some_and(|listener| Some(listener.address) != address) {
                power_off(server);
                self.registry.set_address(&server.id, None);
                self.listening -= 1;
            }
            if server.listener.is_some() {
                return;
            }
        }
        self.waiting.remove(&sequence);
        match status {
            InstanceStatus::NotRunning => {}
            InstanceStatus::Gone => {
                if let Some(server) = self.servers.remove(&sequence) {
                    self.registry.remove(&server.id);
                }
            }
            InstanceStatus::Running { id, running } => {
                self.register(sequence, id, running);
                self.waiting.insert(sequence);
                self.unreported.push(sequence);
            }
        }
    }

    /// Creates the CML server of a running instance, if it has none.
    fn register(&mut self, sequence: u64, id: String, running: Running) {
        let Self { servers, registry, options, world, .. } = self;
        servers.entry(sequence).or_insert_with(|| {
            let (clock, options) = (world.clock().clone(), Arc::clone(options));
            let at = clock.now();
            let number = registry.register(&id, ServerConfig { clock, options, address: running.address, at });
            Server { id, number, running: Some(running), listener: None }
        });
    }

    /// Starts waiting servers in launch order up to the limit, and reports the limit for the remaining ones.
    async fn start_waiting(&mut self) {
        let mut next = 0;
        while self.listening < self.limits.servers
            && let Some(sequence) = self.waiting.range(next..).next().copied()
        {
            next = sequence + 1;
            self.start(sequence);
            // Issuing certificates for a large fleet takes long enough to starve other tasks.
            tokio::task::yield_now().await;
        }
        let is_full = self.listening >= self.limits.servers;
        for sequence in std::mem::take(&mut self.unreported) {
            if is_full && self.waiting.contains(&sequence) {
                self.report_limit(sequence);
            }
        }
    }

    fn start(&mut self, sequence: u64) {
        let Some(entry) = self.servers.get_mut(&sequence) else { return };
        let Some(Running { address, since }) = entry.running else { return };
        let Server { id, number, .. } = entry;
        let Some(server) = self.registry.find(id) else { return };
        let (world, registry) = (Arc::clone(&self.world), self.registry.clone());
        let task = ServerTask { world, registry, id: id.clone(), number: *number, server: server.clone() };
        match self.authority.issue(IpAddr::V4(address)) {
            Ok(certificate) => {
                self.listening += 1;
                self.waiting.remove(&sequence);
                self.registry.set_address(&task.id, Some(address));
                // Since the start of the instance: a manual clock may have moved past it before this task ran.
                task.server.power_on_at(since);
                let stop = watch::Sender::new(false);
                let socket = SocketAddr::new(IpAddr::V4(address), self.limits.port);
                self.tasks.spawn(task.serve(socket, certificate, stop.subscribe()));
                entry.listener = Some(Listener { server, address, stop });
            }
            Err(error) => task.report(format!("cannot issue a certificate for {address}: {error}")),
        }
    }

    fn report_limit(&self, sequence: u64) {
        if let Some(Server { id, number, .. }) = self.servers.get(&sequence) {
            let reason = format!("the limit of {} CML servers is reached; --cml-limit raises it", self.limits.servers);
            report(&self.world, &self.registry, id, *number, reason);
        }
    }
}

/// Returns the status of an instance, and the time at which it changes without a request.
fn instance_status(
    ec2: &mut Ec2,
    (sequence, region): InstanceRef,
    terminated_visible: Duration,
    now: DateTime<Utc>,
) -> (InstanceStatus, Option<DateTime<Utc>>) {
    let gone = (InstanceStatus::Gone, None);
    // Access by name removes expired instances from the region.
    let Ok(region) = ec2.region(region, now) else { return gone };
    let Some(instance) = region.find_by_sequence(sequence) else { return gone };
    match instance.lifecycle {
        Lifecycle::Running { running_at } if running_at <= now => {
            let running = Running { address: instance.assigned_ip, since: running_at };
            (InstanceStatus::Running { id: instance.id.clone(), running }, None)
        }
        Lifecycle::Running { running_at } => (InstanceStatus::NotRunning, Some(running_at)),
        Lifecycle::Stopping { .. } => (InstanceStatus::NotRunning, None),
        Lifecycle::Terminating { terminated_at, .. } => {
            let visible = TimeDelta::from_std(terminated_visible).ok();
            (InstanceStatus::NotRunning, visible.and_then(|visible| terminated_at.checked_add_signed(visible)))
        }
    }
}

/// Serves one CML server on its socket.
struct ServerTask {
    world: Arc<World>,
    registry: CmlServers,
    id: String,
    number: u64,
    server: CmlServer,
}

impl ServerTask {
    /// Binds the socket once the server has booted far enough, and serves it until it is stopped. An address in use is
    /// reported and retried until it is free.
    async fn serve(self, socket: SocketAddr, certificate: Certificate, mut stopping: watch::Receiver<bool>) {
        for attempt in 1_usize.. {
            let stopped = stopping.wait_for(|stop| *stop);
            tokio::select! {
                _ = stopped => return,
                () = self.server.wait_until_listening() => {}
            }
            let mut until = stopping.clone();
            match TcpListener::bind(socket).await {
                Ok(listener) => {
                    self.set_listen_state(ListenState::Listening);
                    let stopped = async move { drop(until.wait_for(|stop| *stop).await) };
                    cml::serve_tls(listener, self.server.clone(), certificate, stopped).await;
                    self.set_listen_state(ListenState::Off);
                    return;
                }
                Err(error) => {
                    if attempt >= QUIET_ATTEMPTS {
                        self.report(format!("cannot listen on {socket}: {error}"));
                    }
                    let pause = if attempt < QUIET_ATTEMPTS { SHORT_PAUSE } else { LONG_PAUSE };
                    // The next iteration checks whether the server was stopped.
                    drop(tokio::time::timeout(pause, until.wait_for(|stop| *stop)).await);
                }
            }
        }
    }

    fn set_listen_state(&self, state: ListenState) -> bool {
        self.registry.set_listen_state(&self.id, self.number, state)
    }

    fn report(&self, reason: String) {
        report(&self.world, &self.registry, &self.id, self.number, reason);
    }
}

/// Records why a server cannot be reached, and adds a notice to the request log if the reason is new.
fn report(world: &World, registry: &CmlServers, id: &str, number: u64, reason: String) {
    if registry.set_listen_state(id, number, ListenState::Prevented(reason.clone())) {
        world.request_log().notify(world.clock().now(), format!("the CML of {id} cannot be reached: {reason}"));
    }
}

fn power_off(server: &mut Server) {
    if let Some(listener) = server.listener.take() {
        listener.stop.send_replace(true);
        listener.server.power_off();
    }
}
