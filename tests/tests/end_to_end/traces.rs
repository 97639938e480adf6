//! Traces: a controller exports them over sockets to a receiver of OTLP.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::HeaderMap;
use axum::routing::post;
use axum::{Router, extract::State};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{TraceService, TraceServiceServer};
use opentelemetry_proto::tonic::collector::trace::v1::{ExportTraceServiceRequest, ExportTraceServiceResponse};
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value as AnyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;
use rstest::rstest;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;

use super::controller_command::{Environment, Running, cloud, run, set, text, with};

const TOKEN: &str = "Bearer s3cret-0f-the-receiver";

/// An export, and its header `authorization`.
type Export = (ExportTraceServiceRequest, Option<String>);

/// Exports that a receiver got.
#[derive(Clone, Default)]
struct Received(Arc<Mutex<Vec<Export>>>);

#[tonic::async_trait]
impl TraceService for Received {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let token = request.metadata().get("authorization").and_then(|token| token.to_str().ok()).map(str::to_owned);
        self.push(request.into_inner(), token);
        Ok(tonic::Response::new(ExportTraceServiceResponse::default()))
    }
}

async fn export(State(received): State<Received>, headers: HeaderMap, body: Bytes) -> Vec<u8> {
    let token = headers.get("authorization").and_then(|token| token.to_str().ok()).map(str::to_owned);
    received.push(ExportTraceServiceRequest::decode(body).expect("protobuf"), token);
    ExportTraceServiceResponse::default().encode_to_vec()
}

impl Received {
    fn push(&self, request: ExportTraceServiceRequest, token: Option<String>) {
        self.0.lock().expect("not poisoned").push((request, token));
    }

    fn spans(&self) -> Vec<Span> {
        let received = self.0.lock().expect("not poisoned");
        let scopes = received.iter().flat_map(|(request, _)| &request.resource_spans).flat_map(|of| &of.scope_spans);
        scopes.flat_map(|scope| scope.spans.clone()).collect()
    }

    fn resource(&self) -> BTreeMap<String, String> {
        let received = self.0.lock().expect("not poisoned");
        let resources = received.iter().flat_map(|(request, _)| &request.resource_spans);
        attributes(resources.filter_map(|of| of.resource.as_ref()).flat_map(|resource| &resource.attributes))
    }

    fn tokens(&self) -> BTreeSet<Option<String>> {
        self.0.lock().expect("not poisoned").iter().map(|(_, token)| token.clone()).collect()
    }
}

fn attributes<'a>(pairs: impl IntoIterator<Item = &'a KeyValue>) -> BTreeMap<String, String> {
    let text = |pair: &KeyValue| match pair.value.as_ref()?.value.as_ref()? {
        AnyValue::StringValue(text) => Some(text.clone()),
        _ => None,
    };
    pairs.into_iter().filter_map(|pair| Some((pair.key.clone(), text(pair)?))).collect()
}

/// Starts a receiver. Returns it with the variables that lead to it.
async fn receiver(protocol: &str) -> (Received, Environment) {
    let received = Received::default();
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    if protocol == "grpc" {
        let service = TraceServiceServer::new(received.clone());
        let server = tonic::transport::Server::builder().add_service(service);
        tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    } else {
        let router = Router::new().route("/v1/traces", post(export)).with_state(received.clone());
        tokio::spawn(async move { axum::serve(listener, router).await });
    }
    let endpoint = format!("http://{address}");
    let variables = set(&[
        ("OTEL_EXPORTER_OTLP_ENDPOINT", &endpoint),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
        ("OTEL_EXPORTER_OTLP_HEADERS", &format!("authorization={}", TOKEN.replace(' ', "%20"))),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test"),
    ]);
    (received, variables)
}

/// Runs a controller until its first sweep is done and a condition holds. Returns its log and its metrics in the
/// OpenMetrics format.
async fn controlled(environment: Environment, until: impl Fn() -> bool + Send + 'static) -> (Vec<String>, String) {
    let ran = tokio::task::spawn_blocking(move || {
        let running = Running::start(&environment);
        running.wait_until_ready();
        let deadline = Instant::now() + Duration::from_secs(30);
        let count = "reconciliation_reconcile_duration_seconds_count 0";
        while (open_metrics(running.port).contains(count) || !until()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(50));
        }
        let metrics = open_metrics(running.port);
        let (code, log) = running.terminate();
        assert_eq!(code, Some(0), "{}", log.join("\n"));
        (log, metrics)
    });
    ran.await.expect("no panic")
}

fn open_metrics(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("it listens");
    let head = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: application/openmetrics-text\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("sent");
    let mut response = String::new();
    stream.read_to_string(&mut response).expect("a response");
    response
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Services that no call within a reconcile or a round of metrics went to.
fn missing_services(spans: &[Span]) -> Vec<&'static str> {
    let begun = spans.iter().filter(|span| ["reconcile", "controller.metrics"].contains(&span.name.as_str()));
    let traces: BTreeSet<&[u8]> = begun.map(|span| span.trace_id.as_slice()).collect();
    let inside = spans.iter().filter(|span| traces.contains(span.trace_id.as_slice()));
    let called: BTreeSet<&str> = inside.filter_map(|span| span.name.split_once(' ')).map(|(first, _)| first).collect();
    let services = ["ec2", "cloudwatch", "cml", "control-plane", "etcd"];
    services.into_iter().filter(|service| !called.contains(service)).collect()
}

#[rstest]
#[case::grpc("grpc")]
#[case::http("http/protobuf")]
#[tokio::test(flavor = "multi_thread")]
async fn each_reconcile_is_a_trace(#[case] protocol: &str) {
    let (cloud, environment) = cloud(Some("bad-day")).await;
    let (received, variables) = receiver(protocol).await;
    let environment: Environment = environment.into_iter().chain(variables).collect();
    // Metrics are collected every second, and spans are exported while the controller runs.
    let soon = [("RECONCILE_INTERVAL", "1"), ("METRICS_POLL_INTERVAL", "1"), ("OTEL_BSP_SCHEDULE_DELAY", "100")];
    let environment = with(&environment, &soon);
    let soon = received.clone();
    let (log, metrics) = controlled(environment, move || missing_services(&soon.spans()).is_empty()).await;
    drop(cloud);
    let spans = received.spans();
    assert_eq!(missing_services(&spans), [""; 0]);
    let names: BTreeSet<&str> = spans.iter().map(|span| span.name.as_str()).collect();

    let roots: Vec<&Span> = spans.iter().filter(|span| span.name == "controller.reconcile").collect();
    assert!(roots.iter().all(|span| span.parent_span_id.is_empty()));
    let reconciles: Vec<&Span> = spans.iter().filter(|span| span.name == "reconcile").collect();
    let traces: BTreeSet<&[u8]> = reconciles.iter().map(|span| span.trace_id.as_slice()).collect();
    assert!(reconciles.len() > 3 && traces.len() == reconciles.len(), "{names:?}");
    for reconcile in &reconciles {
        let root = roots.iter().find(|root| root.trace_id == reconcile.trace_id).expect("a root");
        assert_eq!(reconcile.parent_span_id, root.span_id);
        let (known, root) = (attributes(&reconcile.attributes), attributes(&root.attributes));
        assert_eq!(known["worker"], root["resource"], "{known:?}");
        assert!(known.contains_key("outcome") && known.contains_key("reason"), "{known:?}");
    }
    let known: BTreeSet<&[u8]> = spans.iter().map(|span| span.span_id.as_slice()).collect();
    for span in spans.iter().filter(|span| !span.parent_span_id.is_empty()) {
        assert!(known.contains(span.parent_span_id.as_slice()), "the parent of {} was not exported", span.name);
    }
    let batch = spans.iter().find(|span| span.name == "describe instances of several reconciles");
    assert!(batch.is_none_or(|batch| !batch.links.is_empty()), "{batch:?}");

    let resource = received.resource();
    assert_eq!(resource["service.name"], "worker-controller");
    assert_eq!(resource["deployment.environment.name"], "test");
    assert_eq!(received.tokens(), BTreeSet::from([Some(TOKEN.to_owned())]));

    let ids: BTreeSet<String> = traces.iter().map(|trace| hex(trace)).collect();
    let change = log.iter().find(|line| line.contains("\"effects\":")).expect("a change");
    let change: Value = serde_json::from_str(change).expect("JSON");
    assert!(ids.contains(change["trace_id"].as_str().expect("a trace")), "{change}");
    assert_eq!(change["span_id"].as_str().map(str::len), Some(16), "{change}");
    let exemplar = metrics.split("# {trace_id=\"").nth(1).expect("an exemplar").split('"').next().expect("an id");
    assert!(ids.contains(exemplar), "{exemplar}");
    assert!(!log.join("\n").contains("s3cret"), "the header is printed");
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_export_their_traces() {
    let (_cloud, environment) = cloud(Some("drain")).await;
    let (received, variables) = receiver("http/protobuf").await;
    let environment: Environment = environment.into_iter().chain(variables).collect();
    for arguments in [&["reconcile", "w-blue"][..], &["drain", "w-blue"], &["orphans"], &["plan", "--verbose"]] {
        let before = received.spans().len();
        let done = super::lcm_command::run(arguments, &environment).await;
        assert_eq!(done.status.code(), Some(0), "{arguments:?}: {}", text(&done.stderr));
        assert!(received.spans().len() > before, "{arguments:?} exported nothing");
    }
    assert!(received.spans().iter().any(|span| span.name == "reconcile"));
    assert_eq!(received.resource()["service.name"], "lcm");
}

#[tokio::test(flavor = "multi_thread")]
async fn disabled_sdk_exports_nothing() {
    let (_cloud, environment) = cloud(Some("bad-day")).await;
    let (received, variables) = receiver("http/protobuf").await;
    let environment: Environment = environment.into_iter().chain(variables).collect();
    let (log, metrics) = controlled(with(&environment, &[("OTEL_SDK_DISABLED", "true")]), || true).await;
    assert!(received.spans().is_empty());
    assert!(!log.join("\n").contains("trace_id") && !metrics.contains("trace_id"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn sampler_drops_traces() {
    let (_cloud, environment) = cloud(Some("bad-day")).await;
    let (received, variables) = receiver("http/protobuf").await;
    let environment: Environment = environment.into_iter().chain(variables).collect();
    let (_, metrics) = controlled(with(&environment, &[("OTEL_TRACES_SAMPLER", "always_off")]), || true).await;
    assert!(received.spans().is_empty() && !metrics.contains("trace_id"), "{metrics}");
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_receiver_does_not_stop_the_controller() {
    let (_cloud, environment) = cloud(Some("bad-day")).await;
    let nowhere = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9");
    let token = ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=s3cret");
    let (log, _) = controlled(with(&environment, &[nowhere, token]), || true).await;
    let log = log.join("\n");
    assert!(log.contains("opentelemetry") && !log.contains("s3cret"), "{log}");
}

#[tokio::test]
async fn invalid_variables_are_refused() {
    let environment = set(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9"), ("OTEL_TRACES_EXPORTER", "zipkin")]);
    let output = run(&["--once"], &environment).await;
    assert_eq!(output.status.code(), Some(2));
    let error = text(&output.stderr);
    assert!(error.contains("OTEL_TRACES_EXPORTER='zipkin' is not accepted; accepted: otlp, none"), "{error}");
}
