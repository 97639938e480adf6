//! Runs one CML server per running instance, on the public address of the instance.
//!
//! A server without a visitor is a listening socket and an entry in a table: one task accepts the connections of all
//! addresses. The first connection to an address creates the server, its certificate and its routes.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use chrono::{DateTime, TimeDelta, Utc};
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt as _};
use parking_lot::Mutex;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;

use crate::cml::{self, Authority, BootStage, CmlServers, ListenState, ServerConfig};
use crate::http_server::{self, Gate};
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
    registry: CmlServers,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) {
    let clock = world.clock().clone();
    let feed = world.subscribe();
    let mut supervisor = Supervisor {
        world,
        authority: Arc::new(authority),
        registry,
        limits,
        servers: BTreeMap::new(),
        waiting: BTreeSet::new(),
        unreported: Vec::new(),
        timers: BTreeSet::new(),
        listening: 0,
        frontends: FuturesUnordered::new(),
    };
    supervisor.sync_all();
    tokio::pin!(shutdown);
    loop {
        supervisor.start_waiting();
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
            Some(()) = supervisor.frontends.next() => {}
        }
    }
    for server in supervisor.servers.values_mut() {
        power_off(server, &supervisor.registry);
    }
    while supervisor.frontends.next().await.is_some() {}
}

/// State of all CML servers. Instances are identified by their position in launch order.
struct Supervisor {
    world: Arc<World>,
    authority: Arc<Authority>,
    registry: CmlServers,
    limits: Limits,
    servers: BTreeMap<u64, Server>,
    /// Servers of running instances that do not listen, because the limit is reached.
    waiting: BTreeSet<u64>,
    /// Waiting servers for which the limit has not been reported yet.
    unreported: Vec<u64>,
    /// Times at which the state of an instance changes without a request.
    timers: BTreeSet<(DateTime<Utc>, InstanceRef)>,
    /// Number of servers that were started and not stopped.
    listening: usize,
    /// The started servers. Each accepts connections until it is stopped.
    frontends: FuturesUnordered<BoxFuture<'static, ()>>,
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

/// A started server, which stops when this is dropped.
struct Listener {
    address: Ipv4Addr,
    _stops_when_dropped: oneshot::Sender<()>,
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
    NotRunning { id: String },
    Running { id: String, version: Option<String>, running: Running },
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
            // A restored server may have been found before this notice of the restore.
            if self.registry.is_restored(server.number) {
                continue;
            }
            power_off(&mut server, &self.registry);
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
            InstanceStatus::Gone | InstanceStatus::NotRunning { .. } => None,
            InstanceStatus::Running { running, .. } => Some(*running),
        };
        if let Some(server) = self.servers.get_mut(&sequence) {
            server.running = running;
            let address = running.map(|running| running.address);
            if server.listener.as_ref().is_some_and(|listener| Some(listener.address) != address) {
                power_off(server, &self.registry);
                self.listening -= 1;
            }
            if server.listener.is_some() {
                return;
            }
        }
        self.waiting.remove(&sequence);
        match status {
            InstanceStatus::NotRunning { id } => {
                // The server of a restored instance that does not run.
                if let Some(number) = self.registry.number(&id) {
                    self.servers.entry(sequence).or_insert(Server { id, number, running: None, listener: None });
                }
            }
            InstanceStatus::Gone => {
                if let Some(server) = self.servers.remove(&sequence) {
                    self.registry.remove(&server.id);
                }
            }
            InstanceStatus::Running { id, version, running } => {
                self.register(sequence, id, version, running);
                self.waiting.insert(sequence);
                self.unreported.push(sequence);
            }
        }
    }

    /// Creates the CML server of a running instance, if it has none. `version` is that of its image.
    fn register(&mut self, sequence: u64, id: String, version: Option<String>, running: Running) {
        if self.servers.contains_key(&sequence) {
            return;
        }
        let options = self.registry.options_of(version);
        let clock = self.world.clock().clone();
        let at = clock.now();
        let number = self.registry.register(&id, ServerConfig { clock, options, address: running.address, at });
        self.servers.insert(sequence, Server { id, number, running: Some(running), listener: None });
    }

    /// Starts waiting servers in launch order up to the limit, and reports the limit for the remaining ones.
    fn start_waiting(&mut self) {
        while self.listening < self.limits.servers
            && let Some(sequence) = self.waiting.pop_first()
        {
            self.start(sequence);
        }
        let is_full = self.listening >= self.limits.servers;
        for sequence in std::mem::take(&mut self.unreported) {
            if is_full && self.waiting.contains(&sequence) {
                self.report_limit(sequence);
            }
        }
    }

    fn start(&mut self, sequence: u64) {
        let Some(Server { id, number, running, listener }) = self.servers.get_mut(&sequence) else { return };
        let Some(Running { address, since }) = *running else { return };
        self.listening += 1;
        // Since the start of the instance: a manual clock may have moved past it before.
        self.registry.power_on(id, *number, address, since);
        let frontend = Frontend {
            world: Arc::clone(&self.world),
            authority: Arc::clone(&self.authority),
            registry: self.registry.clone(),
            id: id.clone(),
            number: *number,
            socket: SocketAddr::new(IpAddr::V4(address), self.limits.port),
            endpoint: Mutex::default(),
        };
        let (stop, stopping) = oneshot::channel();
        self.frontends.push(Box::pin(Arc::new(frontend).serve(stopping)));
        *listener = Some(Listener { address, _stops_when_dropped: stop });
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
    let not_running = || InstanceStatus::NotRunning { id: instance.id.clone() };
    match instance.lifecycle {
        Lifecycle::Running { running_at } if running_at <= now => {
            let running = Running { address: instance.assigned_ip, since: running_at };
            let image = region.catalog.images.iter().find(|image| *image.id == *instance.image_id);
            let version = image.and_then(cml::version_of_image);
            (InstanceStatus::Running { id: instance.id.clone(), version, running }, instance.next_disruption(now))
        }
        Lifecycle::Running { running_at } => (not_running(), Some(running_at)),
        Lifecycle::Stopping { .. } => (not_running(), None),
        Lifecycle::Terminating { terminated_at, .. } => {
            let visible = TimeDelta::from_std(terminated_visible).ok();
            (not_running(), visible.and_then(|visible| terminated_at.checked_add_signed(visible)))
        }
    }
}

/// Accepts the connections of one CML server.
struct Frontend {
    world: Arc<World>,
    authority: Arc<Authority>,
    registry: CmlServers,
    id: String,
    number: u64,
    socket: SocketAddr,
    /// Made for the first connection.
    endpoint: Mutex<Option<Endpoint>>,
}

/// Routes and certificate of a CML server.
#[derive(Clone)]
struct Endpoint {
    router: Router,
    tls: TlsAcceptor,
}

impl Frontend {
    /// Binds the socket once the server has booted far enough, and serves it until it is stopped. An address in use is
    /// reported and retried until it is free.
    async fn serve(self: Arc<Self>, mut stopping: oneshot::Receiver<()>) {
        for attempt in 1_usize.. {
            tokio::select! {
                _ = &mut stopping => return,
                // Boxed, so that a listening server does not keep room for the wait.
                () = Box::pin(self.registry.wait_until_listening(self.world.clock(), &self.id)) => {}
            }
            match TcpListener::bind(self.socket).await {
                Ok(listener) => {
                    self.set_listen_state(ListenState::Listening);
                    let connect = |stream| Arc::clone(&self).serve_connection(stream);
                    http_server::accept(listener, || self.gate(), connect, async { drop(stopping.await) }).await;
                    self.set_listen_state(ListenState::Off);
                    return;
                }
                Err(error) => {
                    if attempt >= QUIET_ATTEMPTS {
                        self.report(format!("cannot listen on {}: {error}", self.socket));
                    }
                    let pause = if attempt < QUIET_ATTEMPTS { SHORT_PAUSE } else { LONG_PAUSE };
                    tokio::select! {
                        _ = &mut stopping => return,
                        () = Box::pin(tokio::time::sleep(pause)) => {}
                    }
                }
            }
        }
    }

    /// A server can be pinned to a stage in which it refuses connections while it listens.
    fn gate(&self) -> Gate {
        if self.registry.stage(&self.id) == Some(BootStage::Refused) { Gate::Shut } else { Gate::Open }
    }

    async fn serve_connection(self: Arc<Self>, stream: TcpStream) {
        match self.endpoint() {
            Ok(Some(Endpoint { router, tls })) => http_server::serve_connection(stream, router, Some(tls)).await,
            Ok(None) => {}
            Err(error) => self.report(format!("cannot issue a certificate for {}: {error}", self.socket.ip())),
        }
    }

    /// Routes and certificate of the server; `None` if the cloud was reset.
    fn endpoint(&self) -> io::Result<Option<Endpoint>> {
        let mut endpoint = self.endpoint.lock();
        if endpoint.is_none() && self.registry.is_current(&self.id, self.number) {
            let tls = self.authority.issue(self.socket.ip())?.acceptor();
            *endpoint = self.registry.find(&self.id).map(|server| Endpoint { router: cml::router(server), tls });
        }
        Ok(endpoint.clone())
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

fn power_off(server: &mut Server, registry: &CmlServers) {
    if server.listener.take().is_some() {
        registry.power_off(&server.id, server.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Settings;

    #[tokio::test]
    async fn certificate_is_made_for_the_first_connection() {
        let (world, registry) = (Arc::new(World::new(Settings::default())), CmlServers::default());
        let (clock, address) = (world.clock().clone(), Ipv4Addr::LOCALHOST);
        let at = clock.now();
        let free = std::net::TcpListener::bind((address, 0)).and_then(|free| free.local_addr()).expect("a free port");
        let number = registry.register("i-1", ServerConfig { clock, options: Arc::default(), address, at });
        let frontend = Arc::new(Frontend {
            world,
            authority: Arc::new(Authority::new().expect("an authority")),
            registry: registry.clone(),
            id: "i-1".to_owned(),
            number,
            socket: free,
            endpoint: Mutex::default(),
        });
        let (stop, stopping) = oneshot::channel();
        let serving = tokio::spawn(Arc::clone(&frontend).serve(stopping));
        while registry.listen_state("i-1") != Some(ListenState::Listening) {
            tokio::task::yield_now().await;
        }
        assert!(frontend.endpoint.lock().is_none());
        let visit = TcpStream::connect(free).await.expect("it listens");
        while frontend.endpoint.lock().is_none() {
            tokio::task::yield_now().await;
        }
        drop(visit);
        drop(stop);
        serving.await.expect("it stops");
        assert!(TcpStream::connect(free).await.is_err(), "a stopped server refuses connections");
    }
}
