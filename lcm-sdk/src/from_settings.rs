//! From settings to a controller: which adapter answers for which port.

use std::sync::Arc;

use thiserror::Error;

use crate::admin::{AdminOptions, Exposure};
use crate::controller::election::{ElectionConfig, ElectionConfigError};
use crate::controller::shards::Shards;
use crate::controller::watch::WatchConfig;
use crate::controller::{ControllerConfig, Polling};
use crate::lifecycle::failure::CallFailure;
use crate::lifecycle::secret::Secret;
use crate::ports::{Coordination, Events, Ports, SystemClock};
use crate::providers::aws::{Account, CloudWatch, Ec2, Tuning};
use crate::providers::cml::{self, CmlClient, Security};
use crate::providers::control_plane::{self, ControlPlaneClient};
use crate::providers::etcd::{ClientCertificate, Etcd, EtcdOptions, EtcdTls, EtcdUser};
use crate::providers::events::{ControlPlaneEvents, FanoutEvents, HttpEvents, LogEvents, SinkOptions};
use crate::providers::http::SetupError;
use crate::reconciler::CmlDefaults;
use crate::resilience::batch::{BatchSettings, BatchingCompute};
use crate::settings::Settings;
use crate::telemetry::Telemetry;
use crate::workers::controller::{StartupConfig, WorkerController, WorkerControllerConfig};
use crate::workers::discovery::DiscoveryConfig;

/// Why settings that are right one by one do not make a controller.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum AssemblyError {
    /// A client could not be made.
    #[error("the client for {whom} could not be made: {source}")]
    Client {
        /// Whom it would talk to.
        whom: &'static str,
        /// Why.
        source: SetupError,
    },
    /// The client for etcd could not be made.
    #[error("the client for etcd could not be made: {0}")]
    Etcd(CallFailure),
    /// The election cannot work.
    #[error(transparent)]
    Election(#[from] ElectionConfigError),
}

/// The real adapters, as the settings and the standard AWS environment say.
///
/// # Errors
/// If a client cannot be made, because a file of certificates cannot be read, say. Nobody is called yet.
pub async fn ports(settings: &Settings, telemetry: &Telemetry) -> Result<Ports, AssemblyError> {
    ports_with(settings, Account::from_environment(tuning(settings), telemetry).await, telemetry)
}

/// The same in a cloud at an address of its own, such as a fake one. The environment is not looked at.
///
/// # Errors
/// As [`ports`].
pub fn ports_at(settings: &Settings, aws_url: &str, telemetry: &Telemetry) -> Result<Ports, AssemblyError> {
    let account = Account::at(aws_url, "fake", &Secret::from("fake"), tuning(settings), telemetry);
    ports_with(settings, account, telemetry)
}

/// How AWS is called, as the settings say.
pub fn tuning(settings: &Settings) -> Tuning {
    let aws = &settings.aws;
    Tuning { image_owners: aws.ami_owners.clone(), speed: aws.aws_rate_factor, ..Tuning::default() }
}

/// The same with AWS as this account reaches it; [`tuning`] is what to make one with.
///
/// # Errors
/// As [`ports`].
pub fn ports_with(settings: &Settings, account: Account, telemetry: &Telemetry) -> Result<Ports, AssemblyError> {
    let client = |whom| move |source| AssemblyError::Client { whom, source };
    let ec2 = Arc::new(Ec2::new(account.clone()));

    let secured = match (&settings.cml.cml_ca_file, settings.cml.cml_verify_tls) {
        (_, false) => Security::Unverified,
        (Some(file), true) => Security::VerifiedWith(file.clone()),
        (None, true) => Security::Verified,
    };
    let cml = cml::Options {
        security: secured,
        port: settings.cml.cml_port,
        timeout: settings.cml.cml_timeout,
        ..cml::Options::default()
    };

    let key = settings.control_plane.control_plane_api_key.clone().unwrap_or_else(|| Secret::from(""));
    let mut control_plane = control_plane::Options::new(&settings.control_plane.control_plane_api_url, key);
    control_plane.timeout = settings.control_plane.control_plane_api_timeout;
    control_plane.retries.truncate(settings.control_plane.control_plane_api_retries as usize);

    let control_plane = Arc::new(ControlPlaneClient::new(control_plane).map_err(client("the control plane"))?);

    let mut places: Vec<Arc<dyn Events>> = vec![Arc::new(LogEvents)];
    if settings.control_plane.control_plane_events {
        places.push(Arc::new(ControlPlaneEvents::new(Arc::clone(&control_plane))));
    }
    if let Some(url) = &settings.control_plane.event_sink_url {
        let sink = HttpEvents::new(SinkOptions::new(url.clone())).map_err(client("the event sink"))?;
        places.push(Arc::new(sink));
    }
    Ok(Ports {
        compute: Arc::new(BatchingCompute::new(ec2, BatchSettings::default(), telemetry.clone())),
        metrics: Arc::new(CloudWatch::new(account)),
        cml: Arc::new(CmlClient::new(cml).map_err(client("CML"))?),
        control_plane,
        events: Arc::new(FanoutEvents::new(places)),
        clock: Arc::new(SystemClock),
    })
}

/// The client for etcd; `None` if no endpoints are configured, which means leading alone.
///
/// # Errors
/// If the client cannot be made. Nobody is called yet.
pub fn coordination(settings: &Settings) -> Result<Option<Arc<dyn Coordination>>, AssemblyError> {
    let etcd = &settings.etcd;
    if etcd.is_mock() {
        return Ok(None);
    }
    let mut options = EtcdOptions::new(etcd.urls());
    options.user =
        etcd.etcd_username.clone().zip(etcd.etcd_password.clone()).map(|(name, password)| EtcdUser { name, password });
    let client = etcd.etcd_cert_file.clone().zip(etcd.etcd_key_file.clone());
    let client = client.map(|(certificate_file, key_file)| ClientCertificate { certificate_file, key_file });
    if etcd.etcd_ca_file.is_some() || client.is_some() {
        options.tls = Some(EtcdTls { ca_file: etcd.etcd_ca_file.clone(), client, server_name: None });
    }
    Ok(Some(Arc::new(Etcd::new(options).map_err(AssemblyError::Etcd)?)))
}

/// How the controller works, as the settings say.
pub fn controller_config(settings: &Settings) -> WorkerControllerConfig {
    let (reconciliation, startup) = (&settings.reconciliation, &settings.startup);
    let (election, watch) = (&settings.election, &settings.watch);
    WorkerControllerConfig {
        controller: ControllerConfig {
            interval: reconciliation.reconcile_interval,
            polling: if reconciliation.reconcile_polling_enabled { Polling::Enabled } else { Polling::Disabled },
            initial_delay: reconciliation.initial_delay,
            max_concurrent: reconciliation.max_concurrent,
            timeout: reconciliation.reconcile_timeout,
            backoff: settings.policy().backoff,
            grace: reconciliation.shutdown_grace,
            ..ControllerConfig::default()
        },
        election: ElectionConfig {
            key: settings.leader_key(),
            identity: election.instance_id.clone(),
            ttl: election.lease_ttl,
            margin: election.lease_margin,
            retry_interval: election.retry_interval,
        },
        // As many as can be led: checked when they were read.
        shards: Shards::new(election.leader_shards).unwrap_or_default(),
        watch: watch.watch_enabled.then(|| WatchConfig {
            debounce: watch.debounce_seconds,
            reconnect_delay: watch.reconnect_delay,
            max_reconnect_attempts: watch.max_reconnect_attempts,
            ..WatchConfig::new(settings.watch_prefixes())
        }),
        discovery: settings.discovery.worker_discovery_enabled.then(|| discovery_config(settings)),
        metrics_interval: reconciliation.metrics_poll_interval,
        startup: StartupConfig {
            delay: startup.startup_reconcile_delay,
            limit: startup.startup_reconcile_enabled.then_some(startup.startup_reconcile_timeout),
        },
        cml: cml_defaults(settings),
    }
}

/// How discovery works, as the settings say; whether the controller does it is another setting.
pub fn discovery_config(settings: &Settings) -> DiscoveryConfig {
    DiscoveryConfig {
        interval: settings.discovery.discovery_interval,
        initial_delay: settings.discovery.discovery_initial_delay,
        regions: settings.discovery_regions(),
        filter: settings.discovery_filter(),
    }
}

/// How to sign in to a CML whose record does not say.
pub fn cml_defaults(settings: &Settings) -> CmlDefaults {
    CmlDefaults {
        username: settings.cml.cml_default_username.clone(),
        password: settings.cml.cml_default_password.clone().unwrap_or_else(|| Secret::from("")),
    }
}

/// Where the admin server listens and who may change something there, as the settings say.
pub fn admin_options(settings: &Settings) -> AdminOptions {
    let admin = &settings.admin;
    AdminOptions {
        address: (admin.admin_host, admin.admin_port).into(),
        exposure: if admin.admin_expose { Exposure::Network } else { Exposure::LoopbackOnly },
        key: admin.admin_key.clone(),
    }
}

/// A controller with the real adapters.
///
/// # Errors
/// If a client cannot be made or the election cannot work. Nobody is called yet.
pub async fn worker_controller(settings: &Settings) -> Result<WorkerController, AssemblyError> {
    let telemetry = Telemetry::new(&settings.reconciliation.metric_prefix);
    let ports = ports(settings, &telemetry).await?;
    let coordination = coordination(settings)?;
    Ok(WorkerController::new(ports, settings.policy(), coordination, controller_config(settings), telemetry)?)
}
