//! OpenTelemetry traces, sent with OTLP over gRPC or HTTP.
//!
//! Each reconcile is a trace. Its spans are the calls to EC2, CloudWatch, CML, control plane and etcd; its events are the
//! log records within it. Log records and the histogram of durations carry the trace id.
//!
//! The standard variables of OpenTelemetry configure it:
//!
//! | variable | meaning |
//! |---|---|
//! | `OTEL_EXPORTER_OTLP_ENDPOINT`, `OTEL_EXPORTER_OTLP_TRACES_ENDPOINT` | URL of the receiver; one of them switches traces on |
//! | `OTEL_TRACES_EXPORTER` | `otlp` switches traces on without an endpoint, `none` off |
//! | `OTEL_SDK_DISABLED` | `true` switches traces off |
//! | `OTEL_EXPORTER_OTLP_PROTOCOL`, `OTEL_EXPORTER_OTLP_TRACES_PROTOCOL` | `http/protobuf` (the default) or `grpc` |
//! | `OTEL_EXPORTER_OTLP_HEADERS`, `OTEL_EXPORTER_OTLP_TRACES_HEADERS` | headers such as `authorization=Bearer …`; secret |
//! | `OTEL_EXPORTER_OTLP_TIMEOUT`, `OTEL_EXPORTER_OTLP_TRACES_TIMEOUT` | milliseconds per export |
//! | `OTEL_SERVICE_NAME`, `OTEL_RESOURCE_ATTRIBUTES` | name and attributes of the service |
//! | `OTEL_TRACES_SAMPLER`, `OTEL_TRACES_SAMPLER_ARG` | sampler, and the ratio of a ratio sampler |
//! | `OTEL_BSP_…` | size and delay of the batches |
//!
//! Without them nothing is created: no thread, no connection, no span.

use std::collections::HashMap;
use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use opentelemetry::KeyValue;
use opentelemetry::propagation::TextMapPropagator as _;
use opentelemetry::trace::{FutureExt as _, TracerProvider as _};
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{SpanExporter, WithExportConfig as _, WithHttpConfig as _, WithTonicConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::{SdkTracerProvider, Tracer};
use thiserror::Error;
use tokio::runtime::Handle;
use tracing_subscriber::Layer;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;

use crate::logging::{self, LoggingError};
use crate::settings::LogSettings;
use crate::spans::CALLS;

/// Longest time for which a shutdown waits for the last export.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// Time limit of an export unless a variable sets another, as the specification has it.
const EXPORT_LIMIT: Duration = Duration::from_secs(10);

/// Exports the traces of a process until [`Traces::shutdown`]. By default it exports nothing.
#[derive(Debug, Clone, Default)]
pub struct Traces {
    provider: Option<SdkTracerProvider>,
}

/// The variables of OpenTelemetry cannot be used.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum TracesError {
    /// A variable has a value that is not accepted.
    #[error("{variable}='{value}' is not accepted; accepted: {accepted}")]
    NotAccepted {
        /// The variable.
        variable: &'static str,
        /// Its value.
        value: String,
        /// The accepted values.
        accepted: &'static str,
    },
    /// The exporter could not be created.
    #[error("traces cannot be exported: {0}")]
    Exporter(String),
    /// The logs cannot be set up.
    #[error(transparent)]
    Logging(#[from] LoggingError),
}

/// Sends the logs of the process to standard error, as [`logging::init`] does, and its traces to the receiver that the
/// variables of OpenTelemetry name, if they name one. `service` is the name of the service unless a variable has another.
///
/// Call it within a tokio runtime, which carries the exports, and call [`Traces::shutdown`] at the end.
///
/// # Errors
/// For a variable that is not accepted, for invalid log directives, and if another subscriber is installed.
pub fn init(settings: &LogSettings, service: &str) -> Result<Traces, TracesError> {
    let traces = Traces::from_env(service)?;
    let Some(layer) = traces.layer() else {
        logging::init(settings)?;
        return Ok(traces);
    };
    let color = logging::Color::detect(&std::io::stderr());
    let subscriber = tracing_subscriber::registry().with(logging::layer(settings, color, std::io::stderr)?).with(layer);
    tracing::subscriber::set_global_default(subscriber).map_err(|_| LoggingError::AlreadyInitialized)?;
    Ok(traces)
}

/// Exports the traces of the process as [`init`] does, without logs.
///
/// # Errors
/// Those of [`init`].
pub fn init_without_logs(service: &str) -> Result<Traces, TracesError> {
    let traces = Traces::from_env(service)?;
    if let Some(layer) = traces.layer() {
        let subscriber = tracing_subscriber::registry().with(layer);
        tracing::subscriber::set_global_default(subscriber).map_err(|_| LoggingError::AlreadyInitialized)?;
    }
    Ok(traces)
}

impl Traces {
    /// Creates the exporter that the variables of OpenTelemetry describe, or one that exports nothing if they name no
    /// receiver. It needs the tokio runtime that it is called in.
    ///
    /// # Errors
    /// For a variable that is not accepted.
    pub fn from_env(service: &str) -> Result<Self, TracesError> {
        let Some(protocol) = Protocol::from_variables(|name| std::env::var(name).ok())? else {
            return Ok(Self::default());
        };
        let exporter = protocol.exporter()?;
        let resource = Resource::builder().build();
        // Without a name of its own, the SDK makes one up from the name of the program.
        let is_named =
            resource.get(&"service.name".into()).is_some_and(|name| !name.as_str().starts_with("unknown_service"));
        let resource = match is_named {
            true => resource,
            false => Resource::builder().with_attribute(KeyValue::new("service.name", service.to_owned())).build(),
        };
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        Ok(Self { provider: Some(provider) })
    }

    /// Whether the variables of OpenTelemetry ask for traces.
    ///
    /// # Errors
    /// For a variable that is not accepted.
    pub fn is_configured() -> Result<bool, TracesError> {
        Protocol::from_variables(|name| std::env::var(name).ok()).map(|protocol| protocol.is_some())
    }

    /// Whether traces are exported.
    pub fn is_on(&self) -> bool {
        self.provider.is_some()
    }

    /// Returns the layer of a subscriber that records spans, for a subscriber of your own; none if nothing is exported.
    pub fn layer<S>(&self) -> Option<impl Layer<S> + Send + Sync + use<S>>
    where
        S: tracing::Subscriber + for<'span> LookupSpan<'span> + Send + Sync,
    {
        let tracer: Tracer = self.provider.as_ref()?.tracer("lcm");
        let filter = Targets::new().with_target("lcm", LevelFilter::DEBUG).with_target(CALLS, LevelFilter::TRACE);
        let layer = tracing_opentelemetry::layer().with_tracer(tracer).with_location(false).with_threads(false);
        Some(layer.with_filter(filter))
    }

    /// Exports the spans that are left, and ends. It blocks for at most five seconds: call it outside of asynchronous
    /// code, or with `spawn_blocking`, while the runtime of the exporter still runs.
    ///
    /// # Errors
    /// The failure of the last export.
    pub fn shutdown(&self) -> Result<(), TracesError> {
        let Some(provider) = &self.provider else { return Ok(()) };
        provider.shutdown_with_timeout(SHUTDOWN_LIMIT).map_err(|error| TracesError::Exporter(error.to_string()))
    }
}

/// Runs a future within the trace of a caller, given as a `traceparent` header of W3C Trace Context. An invalid one is
/// ignored.
pub fn within<F: Future>(traceparent: &str, future: F) -> impl Future<Output = F::Output> {
    let carrier = HashMap::from([("traceparent".to_owned(), traceparent.to_owned())]);
    future.with_context(TraceContextPropagator::new().extract(&carrier))
}

/// Transport of OTLP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Grpc,
    Http,
}

impl Protocol {
    /// Reads and checks the variables; `None` if traces are off.
    fn from_variables(variable: impl Fn(&'static str) -> Option<String>) -> Result<Option<Self>, TracesError> {
        let set = |name| Some((name, variable(name).filter(|value| !value.is_empty())?));
        let not_accepted = |(variable, value), accepted| TracesError::NotAccepted { variable, value, accepted };
        if set("OTEL_SDK_DISABLED").is_some_and(|(_, value)| value.eq_ignore_ascii_case("true")) {
            return Ok(None);
        }
        let is_named = match set("OTEL_TRACES_EXPORTER") {
            Some((_, exporter)) if exporter == "none" => return Ok(None),
            Some((_, exporter)) if exporter == "otlp" => true,
            Some(other) => return Err(not_accepted(other, "otlp, none")),
            None => false,
        };
        let endpoint = set("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").or_else(|| set("OTEL_EXPORTER_OTLP_ENDPOINT"));
        if !is_named && endpoint.is_none() {
            return Ok(None);
        }
        if let Some((variable, value)) = endpoint
            && !value.starts_with("http://")
            && !value.starts_with("https://")
        {
            // The value may hold credentials.
            let value = value.split(['@', '?']).next_back().unwrap_or_default().to_owned();
            return Err(not_accepted((variable, value), "a URL that begins with http:// or https://"));
        }
        if let Some(sampler) = set("OTEL_TRACES_SAMPLER") {
            let takes_ratio = match sampler.1.as_str() {
                "always_on" | "always_off" | "parentbased_always_on" | "parentbased_always_off" => false,
                "traceidratio" | "parentbased_traceidratio" => true,
                _ => {
                    let accepted = "always_on, always_off, traceidratio, and each of them after parentbased_";
                    return Err(not_accepted(sampler, accepted));
                }
            };
            if takes_ratio && let Some(ratio) = set("OTEL_TRACES_SAMPLER_ARG") {
                let is_ratio = ratio.1.parse::<f64>().is_ok_and(|ratio| (0.0..=1.0).contains(&ratio));
                if !is_ratio {
                    return Err(not_accepted(ratio, "a ratio from 0 to 1"));
                }
            }
        }
        let protocol = set("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL").or_else(|| set("OTEL_EXPORTER_OTLP_PROTOCOL"));
        match protocol {
            None => Ok(Some(Self::Http)),
            Some((_, protocol)) if protocol == "http/protobuf" => Ok(Some(Self::Http)),
            Some((_, protocol)) if protocol == "grpc" => Ok(Some(Self::Grpc)),
            Some(other) => Err(not_accepted(other, "http/protobuf, grpc")),
        }
    }

    fn exporter(self) -> Result<SpanExporter, TracesError> {
        let failed = |error: &dyn fmt::Display| TracesError::Exporter(error.to_string());
        let runtime = Handle::try_current().map_err(|error| failed(&error))?;
        let exporter = match self {
            Self::Grpc => {
                let tls = tonic::transport::ClientTlsConfig::new().with_native_roots();
                SpanExporter::builder()
                    .with_tonic()
                    .with_protocol(opentelemetry_otlp::Protocol::Grpc)
                    .with_tls_config(tls)
                    .build()
            }
            Self::Http => {
                let client = reqwest::Client::builder().timeout(export_limit());
                let client = HttpOnRuntime { client: client.build().map_err(|error| failed(&error))?, runtime };
                SpanExporter::builder()
                    .with_http()
                    .with_protocol(opentelemetry_otlp::Protocol::HttpBinary)
                    .with_http_client(client)
                    .build()
            }
        };
        exporter.map_err(|error| failed(&error))
    }
}

/// Time limit of an export over HTTP. The exporter reads it by itself for gRPC.
fn export_limit() -> Duration {
    let set = ["OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "OTEL_EXPORTER_OTLP_TIMEOUT"].into_iter();
    let milliseconds = set.filter_map(|name| std::env::var(name).ok()?.parse().ok()).next();
    milliseconds.map_or(EXPORT_LIMIT, Duration::from_millis)
}

/// Sends requests on the runtime: exports are made by a thread without one.
#[derive(Debug)]
struct HttpOnRuntime {
    client: reqwest::Client,
    runtime: Handle,
}

#[async_trait]
impl HttpClient for HttpOnRuntime {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let client = self.client.clone();
        self.runtime.spawn(async move { client.send_bytes(request).await }).await?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Protocol>, String> {
        let find = |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
        Protocol::from_variables(find).map_err(|error| error.to_string())
    }

    const ENDPOINT: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:4318");

    #[test]
    fn traces_are_off_by_default() {
        assert_eq!(read(&[]), Ok(None));
        assert_eq!(read(&[("OTEL_SERVICE_NAME", "lcm"), ("OTEL_EXPORTER_OTLP_ENDPOINT", "")]), Ok(None));
        assert_eq!(read(&[ENDPOINT, ("OTEL_SDK_DISABLED", "true")]), Ok(None));
        assert_eq!(read(&[ENDPOINT, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
    }

    #[test]
    fn endpoint_or_exporter_switches_traces_on() {
        assert_eq!(read(&[ENDPOINT]), Ok(Some(Protocol::Http)));
        assert_eq!(read(&[("OTEL_TRACES_EXPORTER", "otlp")]), Ok(Some(Protocol::Http)));
        assert_eq!(read(&[ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]), Ok(Some(Protocol::Grpc)));
        let own = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/protobuf");
        assert_eq!(read(&[ENDPOINT, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), own]), Ok(Some(Protocol::Http)));
    }

    #[test]
    fn invalid_variables_are_named() {
        for (variable, value, accepted) in [
            ("OTEL_TRACES_EXPORTER", "zipkin", "otlp, none"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json", "http/protobuf, grpc"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "127.0.0.1:4317", "a URL"),
            ("OTEL_TRACES_SAMPLER", "some", "always_on"),
        ] {
            let error = read(&[ENDPOINT, (variable, value)]).expect_err(variable);
            assert!(error.starts_with(&format!("{variable}='{value}'")) && error.contains(accepted), "{error}");
        }
        let ratio = read(&[ENDPOINT, ("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "many")]);
        assert_eq!(
            ratio,
            Err("OTEL_TRACES_SAMPLER_ARG='many' is not accepted; accepted: a ratio from 0 to 1".to_owned())
        );
    }
}
