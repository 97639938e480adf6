//! The whole cloud: every service of one world, on ports of its own.

mod etcd_mirror;
mod exposure;
mod handle;
mod laboratories;
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

pub use self::exposure::Exposure;
pub(crate) use self::exposure::is_local;

use crate::admin::{self, Services};
use crate::aws;
use crate::clock::{Clock, Pace};
use crate::cml::{self, Authority, CmlServers};
use crate::control_plane::{self, ApiVersion, Records};
use crate::etcd::{self, EtcdStore};
use crate::scenario::Scenario;
use crate::world::{Catalog, Settings, World};

/// Where a cloud listens, and what it is made of. The default takes free ports on loopback.
#[derive(Debug, Clone)]
pub struct Options {
    /// The address to listen on. Anything but loopback lets others in, and must be meant.
    pub host: IpAddr,
    /// Who can reach it.
    pub exposure: Exposure,
    /// The ports; zero takes a free one.
    pub ports: Ports,
    /// The clock, the seed and the delays.
    pub settings: Settings,
    /// What the control plane wants to see in `X-API-Key`.
    pub api_key: String,
    /// How every CML is set up; address, instance and faults are filled in.
    pub cml: cml::Options,
    /// At most this many instances have a CML at the same time: each has a socket, and a machine has only so many.
    pub cml_limit: usize,
    /// What the time to live of an etcd lease is counted on.
    pub leases: LeaseClock,
    /// Which control plane is imitated; the scenario's if none is given, or else the current one.
    pub control_plane_api_version: Option<ApiVersion>,
    /// What has happened before it starts. Its clock and seed are not looked at: those of the settings count.
    pub scenario: Option<Scenario>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            exposure: Exposure::default(),
            ports: Ports::default(),
            settings: Settings::default(),
            api_key: control_plane::Options::default().api_key,
            cml: cml::Options::default(),
            cml_limit: 512,
            leases: LeaseClock::default(),
            control_plane_api_version: None,
            scenario: None,
        }
    }
}

/// What the time to live of an etcd lease is counted on.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum LeaseClock {
    /// The world's clock, unless that is accelerated: who renews a lease does so in real time, and would always come too
    /// late.
    #[default]
    Sensible,
    /// The world's clock, whatever it does.
    World,
    /// The clock on the wall.
    Wall,
}

impl LeaseClock {
    fn choose(self, world: &Clock) -> Clock {
        match (self, world.pace()) {
            (Self::World, _) | (Self::Sensible, Pace::Real | Pace::Manual) => world.clone(),
            (Self::Wall, _) | (Self::Sensible, Pace::Accelerated(_)) => Clock::new(Pace::Real),
        }
    }
}

impl std::str::FromStr for LeaseClock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "sensible" => Ok(Self::Sensible),
            "world" => Ok(Self::World),
            "wall" => Ok(Self::Wall),
            other => {
                Err(format!("leases follow the 'world' clock, the 'wall' clock, or what is 'sensible', not '{other}'"))
            }
        }
    }
}

/// The ports of a cloud; zero takes a free one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ports {
    /// EC2, CloudWatch and the admin API.
    pub aws: u16,
    /// etcd.
    pub etcd: u16,
    /// The control plane.
    pub control_plane: u16,
    /// Every CML, each on its instance's own address.
    pub cml: u16,
}

impl Ports {
    /// The ports these services usually have.
    pub const USUAL: Self = Self { aws: 4566, etcd: 2379, control_plane: 8080, cml: 8443 };
}

/// Where to find a cloud.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Endpoints {
    /// EC2 and CloudWatch, all regions.
    pub aws_url: String,
    /// The admin API.
    pub admin_url: String,
    /// What changes over the admin API need in `X-API-Key`, where the cloud is open to the network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_key: Option<String>,
    /// etcd, as host and port.
    pub etcd_endpoint: String,
    /// The control plane.
    pub control_plane_url: String,
    /// What the control plane wants to see in `X-API-Key`.
    pub control_plane_api_key: String,
    /// The port of every CML; the address is the instance's public one.
    pub cml_port: u16,
    /// The authority that vouches for every CML, as a PEM file.
    pub cml_ca_file: PathBuf,
    /// The user of every CML.
    pub cml_username: String,
    /// That user's password.
    pub cml_password: String,
}

impl Endpoints {
    /// The environment variables that point real clients here.
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
            "CONTROL_PLANE_EVENTS": "true",
            "CML_PORT": self.cml_port.to_string(),
            "CML_CA_FILE": self.cml_ca_file,
            "CML_DEFAULT_USERNAME": self.cml_username,
            "CML_DEFAULT_PASSWORD": self.cml_password,
            "AWS_REGION_CONFIGS": region_configs().to_string(),
        })
    }
}

/// Where a controller launches in this cloud: the subnet and the group that are there, in a few regions. More of them
/// would only be more to scan.
fn region_configs() -> Value {
    let regions = ["us-east-1", "us-west-2", "eu-west-1"].map(|region| {
        let Catalog { subnets, groups, .. } = Catalog::of(region);
        let subnet = subnets.first().map(|subnet| subnet.id.clone());
        let groups: Vec<String> = groups.into_iter().take(1).map(|group| group.id).collect();
        (region.to_owned(), json!({"subnet_id": subnet, "security_group_ids": groups}))
    });
    json!({"default_region": "us-east-1", "regions": Value::Object(regions.into_iter().collect())})
}

/// A running cloud. Two of them share nothing; dropping one ends it at once, [`FakeCloud::stop`] cleanly.
///
/// ```
/// use fake_cloud::cloud::{FakeCloud, Options};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let cloud = FakeCloud::start(Options::default()).await?;
/// assert!(cloud.endpoints().aws_url.starts_with("http://127.0.0.1:"));
/// cloud.stop().await;
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
pub struct FakeCloud {
    world: Arc<World>,
    backstage: Services,
    endpoints: Endpoints,
    stop: watch::Sender<bool>,
    services: JoinSet<()>,
}

impl FakeCloud {
    /// Starts every service.
    ///
    /// # Errors
    /// When the address lets others in and that is not meant; when the scenario asks for the impossible; when a port is taken, naming the service and the address, or the authority's file cannot be written.
    pub async fn start(options: Options) -> io::Result<Self> {
        let Options { host, exposure, ports, settings, api_key, cml, cml_limit, leases, .. } = options;
        let (control_plane_api_version, scenario) = (options.control_plane_api_version, options.scenario);
        exposure.check(host)?;
        let admin_key = exposure.into_key();
        let aws = listen("AWS", host, ports.aws).await?;
        let etcd_port = listen("etcd", host, ports.etcd).await?;
        let control_plane = listen("the control plane", host, ports.control_plane).await?;
        let cml_port = match ports.cml {
            // A port that is free here is taken to be free on every other loopback address.
            0 => listen("CML", IpAddr::V4(Ipv4Addr::LOCALHOST), 0).await?.local_addr()?.port(),
            port => port,
        };
        let authority = Authority::new()?;
        let cml_ca_file = std::env::temp_dir().join(format!("fake-cloud-cml-ca-{}-{cml_port}.pem", std::process::id()));
        authority.write_pem(&cml_ca_file)?;

        let seed = settings.seed;
        let clock = settings.clock.clone();
        let world = Arc::new(World::new(settings));
        let store = EtcdStore::new(leases.choose(&clock));
        let generation = control_plane_api_version.or_else(|| scenario.as_ref()?.api_version()).unwrap_or_default();
        let rules =
            control_plane::Settings { seed, dialect: generation.dialect(), ..control_plane::Settings::default() };
        let records = Records::with_settings(clock, rules, etcd_mirror::StoreMirror(store.clone()));
        if let Some(scenario) = &scenario {
            let settled = scenario.settle(&world, &records);
            settled.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
        }
        let url = |listener: &TcpListener| listener.local_addr().map(|address| format!("http://{address}"));
        let aws_url = url(&aws)?;
        let endpoints = Endpoints {
            admin_url: format!("{aws_url}/_fake/"),
            admin_key: admin_key.clone(),
            aws_url,
            etcd_endpoint: etcd_port.local_addr()?.to_string(),
            control_plane_url: url(&control_plane)?,
            control_plane_api_key: api_key.clone(),
            cml_port,
            cml_ca_file,
            cml_username: cml.username.clone(),
            cml_password: cml.password.clone(),
        };

        let stop = watch::Sender::new(false);
        let stopped = || {
            let mut stopping = stop.subscribe();
            async move { drop(stopping.wait_for(|stop| *stop).await) }
        };
        let mut services = JoinSet::new();
        let laboratories = CmlServers::default();
        let backstage =
            Services { records: records.clone(), etcd: store.clone(), cml_servers: laboratories.clone(), scenario };
        let router = admin::full_router(Arc::clone(&world), backstage.clone());
        let admin = aws::AdminApi { router, key: admin_key };
        let (world_of_aws, until) = (Arc::clone(&world), stopped());
        services.spawn(async move { drop(aws::serve_with(aws, world_of_aws, admin, until).await) });
        let (store_of_etcd, until) = (store.clone(), stopped());
        let middleware = service_faults::etcd_middleware(&world, &store);
        services.spawn(async move { drop(etcd::serve_with(etcd_port, store_of_etcd, middleware, until).await) });
        let middleware = service_faults::control_plane_middleware(&world);
        let served = control_plane::Options { api_key, middleware, ..control_plane::Options::default() };
        services.spawn(control_plane::serve(control_plane, records.clone(), served, stopped()));
        let site = laboratories::Site { port: cml_port, limit: cml_limit };
        services.spawn(laboratories::keep(Arc::clone(&world), authority, cml, laboratories, site, stopped()));
        Ok(Self { world, backstage, endpoints, stop, services })
    }

    /// Where everything is.
    pub fn endpoints(&self) -> &Endpoints {
        &self.endpoints
    }

    /// EC2 and CloudWatch from the inside: instances, faults, the recorder, the clock.
    pub fn world(&self) -> &Arc<World> {
        &self.world
    }

    /// etcd from the inside.
    pub fn etcd(&self) -> &EtcdStore {
        &self.backstage.etcd
    }

    /// The control plane from the inside.
    pub fn records(&self) -> &Records {
        &self.backstage.records
    }

    /// Ends every service and waits until they have.
    pub async fn stop(mut self) {
        self.stop.send_replace(true);
        while self.services.join_next().await.is_some() {}
    }
}

impl Drop for FakeCloud {
    fn drop(&mut self) {
        // Best effort: a file in the temporary folder that outlives us harms nobody.
        drop(std::fs::remove_file(&self.endpoints.cml_ca_file));
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
    fn leases_are_counted_in_real_time_where_the_world_runs_ahead() {
        let pace = |leases: LeaseClock, world| leases.choose(&Clock::new(world)).pace();
        assert_eq!(pace(LeaseClock::Sensible, Pace::Accelerated(60.0)), Pace::Real);
        assert_eq!(pace(LeaseClock::Sensible, Pace::Manual), Pace::Manual);
        assert_eq!(pace(LeaseClock::World, Pace::Accelerated(60.0)), Pace::Accelerated(60.0));
        assert_eq!(pace(LeaseClock::Wall, Pace::Manual), Pace::Real);
        assert!("lunar".parse::<LeaseClock>().is_err_and(|error| error.contains("'world'")));
    }

    #[test]
    fn a_controller_is_told_where_to_launch() {
        let configs = region_configs();
        assert!(configs["regions"]["us-east-1"]["subnet_id"].as_str().is_some_and(|id| id.starts_with("subnet-")));
        assert!(configs["regions"]["eu-west-1"]["security_group_ids"][0].as_str().is_some());
    }
}
