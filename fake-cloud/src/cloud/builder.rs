//! Configuration of a [`FakeCloud`].

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use super::FakeCloud;
use crate::clock::{Clock, Pace};
use crate::cml;
use crate::control_plane::{self, Generation};
use crate::scenario::Scenario;
use crate::snapshot::Snapshot;
use crate::world::{Account, AgentDimensions, Delays, Settings, StopWhilePending};

/// Default of [`FakeCloudBuilder::cml_limit`].
pub(crate) const DEFAULT_CML_LIMIT: usize = 512;

/// Configures and starts a [`FakeCloud`]. The defaults are free ports on 127.0.0.1, real time and an empty world.
///
/// ```
/// use fake_cloud::world::Delays;
/// use fake_cloud::{FakeCloud, Pace};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let cloud = FakeCloud::builder().pace(Pace::Manual).seed(7).delays(Delays::none()).start().await?;
/// assert_eq!(cloud.world().settings().seed, 7);
/// # Ok::<(), std::io::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing until `start` is called"]
pub struct FakeCloudBuilder {
    pub(super) host: IpAddr,
    pub(super) exposure: Exposure,
    pub(super) ports: Ports,
    pub(super) settings: Settings,
    pub(super) api_key: String,
    pub(super) cml: cml::Options,
    pub(super) cml_limit: usize,
    pub(super) lease_clock: LeaseClock,
    pub(super) generation: Option<Generation>,
    pub(super) scenario: Option<Scenario>,
    pub(super) snapshot: Option<Snapshot>,
}

impl Default for FakeCloudBuilder {
    fn default() -> Self {
        Self {
            host: IpAddr::V4(Ipv4Addr::LOCALHOST),
            exposure: Exposure::default(),
            ports: Ports::default(),
            settings: Settings::default(),
            api_key: control_plane::Options::default().api_key,
            cml: cml::Options::default(),
            cml_limit: DEFAULT_CML_LIMIT,
            lease_clock: LeaseClock::default(),
            generation: None,
            scenario: None,
            snapshot: None,
        }
    }
}

impl FakeCloudBuilder {
    /// Sets the address on which all services except CML listen. Addresses other than loopback require
    /// [`Exposure::Network`].
    pub fn host(mut self, host: impl Into<IpAddr>) -> Self {
        self.host = host.into();
        self
    }

    /// Sets whether remote clients may connect. [`Exposure::Loopback`] by default.
    pub fn exposure(mut self, exposure: Exposure) -> Self {
        self.exposure = exposure;
        self
    }

    /// Sets the ports; 0, the default, selects a free port.
    pub fn ports(mut self, ports: Ports) -> Self {
        self.ports = ports;
        self
    }

    /// Sets the clock. Use [`pace`](Self::pace) unless the clock is shared with other code.
    pub fn clock(mut self, clock: Clock) -> Self {
        self.settings.clock = clock;
        self
    }

    /// Sets a new clock with this pace, which starts at the current time. [`Pace::Real`] by default.
    pub fn pace(self, pace: Pace) -> Self {
        self.clock(Clock::new(pace))
    }

    /// Sets the seed of all random numbers; 0 by default. Clouds with equal seeds and requests generate equal ids.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = seed;
        self
    }

    /// Sets the durations of instance state changes.
    pub fn delays(mut self, delays: Delays) -> Self {
        self.settings.delays = delays;
        self
    }

    /// Sets the dimensions of the metrics that the CloudWatch agent of an instance reports.
    pub fn agent_dimensions(mut self, dimensions: AgentDimensions) -> Self {
        self.settings.agent_dimensions = dimensions;
        self
    }

    /// Sets the behavior of StopInstances for a `pending` instance.
    pub fn stop_while_pending(mut self, behavior: StopWhilePending) -> Self {
        self.settings.stop_while_pending = behavior;
        self
    }

    /// Adds an account beside the default account. Requests signed with its access key see its own resources only.
    pub fn account(mut self, account: Account) -> Self {
        self.settings.accounts.push(account);
        self
    }

    /// Sets the key that the control plane requires in `X-API-Key`.
    pub fn api_key(mut self, api_key: impl Into<String>) -> Self {
        self.api_key = api_key.into();
        self
    }

    /// Configures the CML servers. The address, the instance id and the middleware are overwritten.
    ///
    /// ```
    /// use fake_cloud::FakeCloud;
    /// use fake_cloud::cml::Boot;
    ///
    /// let builder = FakeCloud::builder().cml(|cml| cml.boot = Boot::REALISTIC);
    /// ```
    pub fn cml(mut self, configure: impl FnOnce(&mut cml::Options)) -> Self {
        configure(&mut self.cml);
        self
    }

    /// Sets the maximum number of CML servers that listen at the same time; 512 by default. Each uses a socket.
    pub fn cml_limit(mut self, limit: usize) -> Self {
        self.cml_limit = limit;
        self
    }

    /// Sets the clock of etcd leases.
    pub fn lease_clock(mut self, lease_clock: LeaseClock) -> Self {
        self.lease_clock = lease_clock;
        self
    }

    /// Sets the generation of the control plane. `None`, the default, selects the generation of the scenario, or else
    /// `original`.
    pub fn control_plane(mut self, generation: impl Into<Option<Generation>>) -> Self {
        self.generation = generation.into();
        self
    }

    /// Sets the initial state. The clock and the seed of the scenario are ignored in favor of those of the builder.
    pub fn scenario(mut self, scenario: impl Into<Option<Scenario>>) -> Self {
        self.scenario = scenario.into();
        self
    }

    /// Starts from a snapshot, with its clock, seed, delays and generation of the control plane. It takes the place of a
    /// scenario. Addresses, ports and keys are those of the builder; so is the CML password, where the snapshot masks it.
    pub fn restore(mut self, snapshot: impl Into<Option<Snapshot>>) -> Self {
        self.snapshot = snapshot.into();
        self
    }

    /// Starts all services.
    ///
    /// # Errors
    /// - the host is not a loopback address and remote clients are not allowed;
    /// - the scenario cannot be applied, or the snapshot is invalid;
    /// - a port is in use; the error names the service and the address;
    /// - the PEM file of the CML certificate authority cannot be written.
    pub async fn start(self) -> io::Result<FakeCloud> {
        FakeCloud::from_builder(self).await
    }
}

/// Clients that may connect to a cloud. The cloud holds no secrets, but a client that reaches it can change the result
/// of a test.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Exposure {
    /// Clients on this machine. Listening on any other address is an error.
    #[default]
    Loopback,
    /// All clients that can reach the address of the cloud.
    Network {
        /// Key that changes through the admin API require in `X-API-Key`; must not be empty.
        admin_key: String,
    },
}

impl Exposure {
    /// Allows remote clients, with a random admin key.
    pub fn network() -> Self {
        Self::Network { admin_key: uuid::Uuid::new_v4().simple().to_string() }
    }

    pub(super) fn into_key(self) -> Option<String> {
        match self {
            Self::Loopback => None,
            Self::Network { admin_key } => Some(admin_key),
        }
    }

    /// Rejects an address that is reachable by more clients than allowed, and an empty admin key.
    pub(super) fn check(&self, host: IpAddr) -> io::Result<()> {
        let invalid = |problem: String| Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        match self {
            Self::Loopback if !is_loopback(host) => invalid(format!(
                "{host} is not a loopback address; pass --expose (Exposure::Network) to allow remote access"
            )),
            Self::Network { admin_key } if admin_key.is_empty() => {
                invalid("invalid admin key '': expected at least one character".to_owned())
            }
            Self::Loopback | Self::Network { .. } => Ok(()),
        }
    }
}

/// Returns whether only this machine can reach an address.
pub(crate) fn is_loopback(host: IpAddr) -> bool {
    host.to_canonical().is_loopback()
}

/// Clock on which the time to live of etcd leases is counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseClock {
    /// The clock of the world, or real time if that clock is accelerated. Clients renew leases in real time, so leases
    /// on an accelerated clock would always expire.
    #[default]
    Auto,
    /// The clock of the world at any pace.
    World,
    /// Real time, independent of the clock of the world.
    Wall,
}

impl LeaseClock {
    pub(super) fn choose(self, world: &Clock) -> Clock {
        match (self, world.pace()) {
            (Self::World, _) | (Self::Auto, Pace::Real | Pace::Manual) => world.clone(),
            (Self::Wall, _) | (Self::Auto, Pace::Accelerated(_)) => Clock::new(Pace::Real),
        }
    }
}

impl std::str::FromStr for LeaseClock {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            // `sensible` is the former name of `auto`.
            "auto" | "sensible" => Ok(Self::Auto),
            "world" => Ok(Self::World),
            "wall" => Ok(Self::Wall),
            other => Err(format!("invalid lease clock '{other}': expected 'world', 'wall' or 'auto'")),
        }
    }
}

/// Ports of a cloud; 0, the default, selects a free port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ports {
    /// EC2, CloudWatch, STS and the admin API.
    pub aws: u16,
    /// The etcd gRPC API.
    pub etcd: u16,
    /// The control plane API.
    pub control_plane: u16,
    /// CML, on the public address of each instance.
    pub cml: u16,
}

impl Ports {
    /// Well-known ports of the services, which the command uses by default.
    pub const WELL_KNOWN: Self = Self { aws: 4566, etcd: 2379, control_plane: 8080, cml: 8443 };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exposed_clouds_listen_on_other_addresses() {
        let check = |exposure: &Exposure, host: &str| exposure.check(host.parse().expect("an address"));
        for local in ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"] {
            assert!(check(&Exposure::Loopback, local).is_ok(), "{local}");
        }
        for open in ["0.0.0.0", "::", "10.0.0.7", "::ffff:10.0.0.7"] {
            let error = check(&Exposure::Loopback, open).expect_err(open).to_string();
            assert!(error.starts_with(open) && error.contains("--expose"), "{error}");
            assert!(check(&Exposure::network(), open).is_ok(), "{open}");
        }
        assert!(check(&Exposure::Network { admin_key: String::new() }, "127.0.0.1").is_err());
        assert_ne!(Exposure::network(), Exposure::network());
    }

    #[test]
    fn auto_lease_clock_is_real_on_an_accelerated_world() {
        let pace = |leases: LeaseClock, world| leases.choose(&Clock::new(world)).pace();
        assert_eq!(pace(LeaseClock::Auto, Pace::Accelerated(60.0)), Pace::Real);
        assert_eq!(pace(LeaseClock::Auto, Pace::Manual), Pace::Manual);
        assert_eq!(pace(LeaseClock::World, Pace::Accelerated(60.0)), Pace::Accelerated(60.0));
        assert_eq!(pace(LeaseClock::Wall, Pace::Manual), Pace::Real);
    }

    #[test]
    fn lease_clocks_are_parsed_by_name() {
        assert_eq!("sensible".parse(), Ok(LeaseClock::Auto));
        let error = "lunar".parse::<LeaseClock>().expect_err("an unknown clock");
        assert_eq!(error, "invalid lease clock 'lunar': expected 'world', 'wall' or 'auto'");
    }
}
