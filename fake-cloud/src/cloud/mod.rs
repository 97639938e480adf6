//! A complete cloud: all services of one world, each on its own port.

mod builder;
mod carry;
mod cml_supervisor;
mod handle;
mod service_faults;

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;

pub(crate) use self::builder::{DEFAULT_CML_LIMIT, is_loopback};
pub use self::builder::{Exposure, FakeCloudBuilder, LeaseClock, Ports};
pub use self::carry::{Advancer, NotIdle, TimeFollower};
pub use self::handle::Unmet;

use crate::admin::{self, Services};
use crate::aws;
use crate::cml::{Authority, CmlServers};
use crate::control_plane::{self, EtcdMirror, Generation, Records};
use crate::etcd::{self, Delete, EtcdStore, KeyRange, Put};
use crate::middleware::Middleware;
use crate::snapshot::{Restored, Snapshot};
use crate::world::{Catalog, IMAGE_OWNER, World};

/// Addresses and credentials of a cloud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Endpoints {
    /// Base URL of EC2, CloudWatch and STS in all regions.
    pub aws_url: String,
    /// Base URL of the admin API.
    pub admin_url: String,
    /// Key that changes through the admin API require in `X-API-Key`; set if remote clients are allowed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_key: Option<String>,
    /// Host and port of etcd, without a scheme.
    pub etcd_endpoint: String,
    /// Base URL of the control plane.
    pub control_plane_url: String,
    /// Key that the control plane requires in `X-API-Key`.
    pub control_plane_api_key: String,
    /// Generation of the control plane.
    pub control_plane_generation: Generation,
    /// Port of every CML server; its host is the public address of the instance.
    pub cml_port: u16,
    /// PEM file of the certificate authority of the CML servers. Removed when the cloud is dropped.
    pub cml_ca_file: PathBuf,
    /// User name on every CML server.
    pub cml_username: String,
    /// Password of that user.
    pub cml_password: String,
}

impl Endpoints {
    /// Returns the environment variables that point AWS SDKs, etcdctl and the worker controller to the cloud.
    pub fn environment(&self) -> Value {
        json!({
            "AWS_ENDPOINT_URL": self.aws_url,
            "AWS_ACCESS_KEY_ID": "fake",
            "AWS_SECRET_ACCESS_KEY": "fake",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "ETCDCTL_ENDPOINTS": self.etcd_endpoint,
            "ETCD_ENDPOINTS": self.etcd_endpoint,
            "CONTROL_PLANE_API_URL": self.control_plane_url,
            "CONTROL_PLANE_API_KEY": self.control_plane_api_key,
            "CONTROL_PLANE_EVENTS": (self.control_plane_generation != Generation::Original).to_string(),
            "CML_PORT": self.cml_port.to_string(),
            "CML_CA_FILE": self.cml_ca_file,
            "CML_DEFAULT_USERNAME": self.cml_username,
            "CML_DEFAULT_PASSWORD": self.cml_password,
            "AWS_REGION_CONFIGS": region_configs().to_string(),
            "AMI_OWNERS": IMAGE_OWNER,
        })
    }
}

/// Returns the launch configuration of a controller: the default subnet and security group of a few regions.
fn region_configs() -> Value {
    let regions = ["us-east-1", "us-west-2", "eu-west-1"].map(|region| {
        let Catalog { subnets, groups, .. } = Catalog::for_region(region);
        let subnet = subnets.first().map(|subnet| subnet.id.clone());
        let groups: Vec<String> = groups.into_iter().take(1).map(|group| group.id).collect();
        (region.to_owned(), json!({"subnet_id": subnet, "security_group_ids": groups}))
    });
    json!({"default_region": "us-east-1", "regions": Value::Object(regions.into_iter().collect())})
}

/// A running cloud. Clouds are independent of each other.
///
/// [`stop`](Self::stop) shuts a cloud down and waits for its connections to end; dropping it aborts them.
///
/// ```
/// use fake_cloud::FakeCloud;
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let cloud = FakeCloud::start().await?;
/// assert!(cloud.endpoints().aws_url.starts_with("http://127.0.0.1:"));
/// cloud.stop().await;
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct FakeCloud {
    world: Arc<World>,
    services: Services,
    endpoints: Endpoints,
    restored: Restored,
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
    _ca_file: CaFile,
}

impl FakeCloud {
    /// Starts a cloud with the default configuration: free ports on 127.0.0.1, real time and an empty world.
    ///
    /// # Errors
    /// The errors of [`FakeCloudBuilder::start`].
    pub async fn start() -> io::Result<Self> {
        Self::builder().start().await
    }

    /// Returns a builder for a cloud with another configuration.
    pub fn builder() -> FakeCloudBuilder {
        FakeCloudBuilder::default()
    }

    async fn from_builder(builder: FakeCloudBuilder) -> io::Result<Self> {
        let origin = Arc::new(builder.clone());
        let FakeCloudBuilder { host, exposure, ports, settings, api_key, cml, cml_limit, lease_clock, .. } = builder;
        let (generation, scenario, snapshot) = (builder.generation, builder.scenario, builder.snapshot);
        exposure.check(host)?;
        let admin_key = exposure.into_key();
        let aws_listener = listen("AWS", host, ports.aws).await?;
        let etcd_listener = listen("etcd", host, ports.etcd).await?;
        let control_plane_listener = listen("the control plane", host, ports.control_plane).await?;
        let cml_port = match ports.cml {
            // A port that is free on 127.0.0.1 is assumed to be free on every other loopback address.
            0 => listen("CML", IpAddr::V4(Ipv4Addr::LOCALHOST), 0).await?.local_addr()?.port(),
            port => port,
        };
        let authority = Authority::new()?;
        let name = format!("fake-cloud-cml-ca-{}-{cml_port}.pem", std::process::id());
        let ca_file = CaFile(std::env::temp_dir().join(name));
        authority.write_pem(&ca_file.0)?;

        let seed = settings.seed;
        let clock = settings.clock.clone();
        if let Some(state) = snapshot.as_ref().and_then(Snapshot::clock) {
            // Before the clock of the leases is chosen by its pace.
            clock.restore(state);
        }
        let world = Arc::new(World::new(settings));
        let store = EtcdStore::new(lease_clock.choose(&clock));
        let saved = snapshot.as_ref().and_then(Snapshot::generation);
        let generation = saved.or(generation).or_else(|| scenario.as_ref()?.generation()).unwrap_or_default();
        let settings = control_plane::Settings { seed, generation, ..control_plane::Settings::default() };
        let records = Records::with_settings(clock, settings, store.clone());
        let cml_servers = CmlServers::default();
        let for_cml = Arc::downgrade(&world);
        cml_servers.configure(cml, move |version| match for_cml.upgrade() {
            Some(world) => service_faults::cml_middleware(&world, version.to_owned()),
            None => Middleware::default(),
        });
        let services = Services::new(records.clone(), store.clone(), cml_servers.clone(), scenario.clone());
        let services = Services { start: snapshot, origin: Some(origin), ..services };
        let invalid =
            |error: Box<dyn std::error::Error + Send + Sync>| io::Error::new(io::ErrorKind::InvalidInput, error);
        let restored = match (&services.start, &scenario) {
            (Some(snapshot), _) => services.restore(&world, snapshot).map_err(|error| invalid(error.into()))?,
            (None, Some(scenario)) => {
                services.apply(scenario, &world).map_err(|error| invalid(error.into()))?;
                Restored::default()
            }
            (None, None) => Restored::default(),
        };
        let cml = cml_servers.options();
        let url = |listener: &TcpListener| listener.local_addr().map(|address| format!("http://{address}"));
        let aws_url = url(&aws_listener)?;
        let endpoints = Endpoints {
            admin_url: format!("{aws_url}/_fake/"),
            admin_key: admin_key.clone(),
            aws_url,
            etcd_endpoint: etcd_listener.local_addr()?.to_string(),
            control_plane_url: url(&control_plane_listener)?,
            control_plane_api_key: api_key.clone(),
            control_plane_generation: generation,
            cml_port,
            cml_ca_file: ca_file.0.clone(),
            cml_username: cml.username.clone(),
            cml_password: cml.password.clone(),
        };

        let stop = watch::Sender::new(false);
        let stopped = || {
            let mut stopping = stop.subscribe();
            async move { drop(stopping.wait_for(|stop| *stop).await) }
        };
        let mut tasks = JoinSet::new();
        let router = admin::full_router(Arc::clone(&world), services.clone())
            .layer(axum::Extension(admin::ui::Exports(endpoints.environment())));
        let admin = aws::AdminApi { router, key: admin_key };
        let (aws_world, shutdown) = (Arc::clone(&world), stopped());
        tasks.spawn(async move { drop(aws::serve_with(aws_listener, aws_world, admin, shutdown).await) });
        let options = etcd::Options::default().with_middleware(service_faults::etcd_middleware(&world, &store));
        let shutdown = stopped();
        tasks.spawn(async move { drop(etcd::serve_with(etcd_listener, store, options, shutdown).await) });
        let (timeline, timeline_world, timeline_records) =
            (services.timeline.clone(), Arc::clone(&world), records.clone());
        let shutdown = stopped();
        tasks.spawn(async move {
            tokio::select! {
                () = timeline.run(&timeline_world, &timeline_records) => {}
                () = shutdown => {}
            }
        });
        let middleware = service_faults::control_plane_middleware(&world);
        let options = control_plane::Options { api_key, middleware, ..control_plane::Options::default() };
        tasks.spawn(control_plane::serve(control_plane_listener, records, options, stopped()));
        let limits = cml_supervisor::Limits { port: cml_port, servers: cml_limit };
        tasks.spawn(cml_supervisor::run(Arc::clone(&world), authority, cml_servers, limits, stopped()));
        Ok(Self { world, services, endpoints, restored, stop, tasks, _ca_file: ca_file })
    }

    /// Returns the addresses and credentials of all services.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// Returns which secrets the snapshot did not hold from which the cloud started.
    pub fn restored(&self) -> &Restored {
        &self.restored
    }

    /// Returns the state of EC2 and CloudWatch, with the clock, the faults and the request log of all services.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// Returns the store of etcd.
    pub fn etcd(&self) -> &EtcdStore {
        &self.services.etcd
    }

    /// Returns the records of the control plane.
    pub fn records(&self) -> &Records {
        &self.services.records
    }

    /// Stops all services and waits until they have ended.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// PEM file of the certificate authority, removed with the cloud and by a start that fails.
#[derive(Debug)]
struct CaFile(PathBuf);

impl Drop for CaFile {
    fn drop(&mut self) {
        // Best effort: a leftover file in the temporary directory is harmless.
        drop(std::fs::remove_file(&self.0));
    }
}

/// Mirrors the records of the control plane into etcd.
impl EtcdMirror for EtcdStore {
    fn put(&self, key: &str, value: &str) {
        // Cannot fail: the key is not empty and there is no lease.
        drop(Self::put(self, &Put::new(key.to_owned(), value.to_owned())));
    }

    fn delete(&self, key: &str) {
        drop(Self::delete(self, &Delete { keys: KeyRange::One(key.to_owned().into()) }));
    }
}

async fn listen(service: &str, host: IpAddr, port: u16) -> io::Result<TcpListener> {
    let address = SocketAddr::new(host, port);
    TcpListener::bind(address)
        .await
        .map_err(|error| io::Error::new(error.kind(), format!("cannot listen on {address} for {service}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launch_configuration_names_existing_resources() {
        let configs = region_configs();
        assert!(configs["regions"]["us-east-1"]["subnet_id"].as_str().is_some_and(|id| id.starts_with("subnet-")));
        assert!(configs["regions"]["eu-west-1"]["security_group_ids"][0].as_str().is_some());
    }
}
