//! CML servers over sockets.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use axum::response::IntoResponse;
use fake_cloud::cml::{
    Authority, Boot, BootStage, CmlError, CmlServer, NewLab, Options, bad_gateway_page, serve_http, serve_http_at,
    serve_tls,
};
use fake_cloud::middleware::{Fault, Middleware};
use fake_cloud::{Clock, Pace, Service};
use reqwest::{Client, Method};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

struct Served {
    base: String,
    system: CmlServer,
    client: Client,
    stop: Option<oneshot::Sender<()>>,
}

impl Served {
    async fn start(options: Options) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let base = format!("http://{}/api/v0", listener.local_addr().expect("bound"));
        let system = CmlServer::new(Clock::new(Pace::Manual), options);
        let (stop, stopped) = oneshot::channel();
        tokio::spawn(serve_http(listener, system.clone(), async { drop(stopped.await) }));
        let client = Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().expect("a client");
        Self { base, system, client, stop: Some(stop) }
    }

    fn request(&self, method: Method, path: &str) -> reqwest::RequestBuilder {
        self.client.request(method, format!("{}{path}", self.base))
    }

    async fn log_in(&self) -> String {
        let body = json!({"username": "admin", "password": "admin"});
        let response = self.request(Method::POST, "/authenticate").json(&body).send().await.expect("a response");
        assert_eq!(response.status(), 200);
        response.json().await.expect("a bare JSON string")
    }

    async fn get(&self, path: &str, token: &str) -> (u16, Value) {
        let response = self.request(Method::GET, path).bearer_auth(token).send().await.expect("a response");
        (response.status().as_u16(), response.json().await.expect("JSON"))
    }
}

/// Polls until the response is as expected; panics after a deadline.
async fn eventually<T, F: Future<Output = T>>(request: impl Fn() -> F, expected: impl Fn(&T) -> bool) -> T {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let response = request().await;
        if expected(&response) {
            return response;
        }
        assert!(Instant::now() < deadline, "no expected response before the deadline");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn certificate_is_valid_for_its_address_only() {
    let authority = Authority::new().expect("an authority");
    let (here, elsewhere) = (IpAddr::from([127, 0, 0, 1]), IpAddr::from([127, 0, 0, 2]));
    let trusting = Client::builder()
        .no_proxy()
        .tls_certs_only([reqwest::Certificate::from_pem(authority.pem().as_bytes()).expect("PEM")])
        .build()
        .expect("a client");
    let untrusting = Client::builder().no_proxy().build().expect("a client");
    for (name, certified) in [("right", here), ("wrong", elsewhere)] {
        let listener = TcpListener::bind((here, 0)).await.expect("a free port");
        let url = format!("https://{}/api/v0/system_information", listener.local_addr().expect("bound"));
        let certificate = authority.issue(certified).expect("a certificate");
        let system = CmlServer::new(Clock::new(Pace::Real), Options::default());
        tokio::spawn(serve_tls(listener, system, certificate, std::future::pending()));
        let response = trusting.get(&url).send().await;
        assert_eq!(response.is_ok(), name == "right", "{name}: {response:?}");
        assert!(untrusting.get(&url).send().await.is_err(), "the authority is not in the trust store");
    }
    let file = std::env::temp_dir().join(format!("fake-cloud-test-ca-{}.pem", std::process::id()));
    authority.write_pem(&file).expect("written");
    assert_eq!(std::fs::read_to_string(&file).expect("exists"), authority.pem());
    std::fs::remove_file(file).expect("exists");
}

#[tokio::test]
async fn stop_refuses_new_and_closes_open_connections() {
    let mut served = Served::start(Options::default()).await;
    let token = served.log_in().await;
    assert_eq!(served.get("/authok", &token).await.0, 200);
    drop(served.stop.take());
    let request = || served.request(Method::GET, "/system_information").send();
    let refused = eventually(request, Result::is_err).await.expect_err("refused");
    assert!(refused.is_connect() || refused.is_request(), "{refused:?}");
}

#[tokio::test]
async fn listener_opens_after_the_refused_stage() {
    let clock = Clock::new(Pace::Manual);
    let boot = Boot { refused: Duration::from_secs(60), ..Boot::INSTANT };
    let system = CmlServer::new(clock.clone(), Options { boot, ..Options::default() });
    // Bind and drop, to get a free port.
    let address: SocketAddr = {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        listener.local_addr().expect("bound")
    };
    tokio::spawn(serve_http_at(address, system, std::future::pending()));
    tokio::task::yield_now().await;
    let error = tokio::net::TcpStream::connect(address).await.expect_err("refused");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    clock.advance(Duration::from_secs(60));
    eventually(|| tokio::net::TcpStream::connect(address), Result::is_ok).await.expect("listening");
}

#[tokio::test]
async fn restarted_server_keeps_labs_and_address() {
    let system = CmlServer::new(Clock::new(Pace::Manual), Options::default());
    let lab = system.create_lab(NewLab::default()).expect("created");
    let mut address = SocketAddr::from(([127, 0, 0, 1], 0));
    for round in 0..2 {
        // A new client each time: the connections of the old server are closed.
        let client = Client::builder().no_proxy().timeout(Duration::from_secs(30)).build().expect("a client");
        if round == 0 {
            address = TcpListener::bind(address).await.and_then(|free| free.local_addr()).expect("a free port");
        } else {
            system.power_on();
        }
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve_http_at(address, system.clone(), async { drop(stopped.await) }));
        let url = format!("http://{address}/api/v0");
        let request = || client.get(format!("{url}/system_information")).send();
        eventually(request, Result::is_ok).await.expect("a response");
        let token = system.log_in("admin", "admin").expect("logged in");
        let labs = client.get(format!("{url}/labs")).bearer_auth(token).send().await.expect("a response");
        assert_eq!(labs.json::<Value>().await.expect("JSON"), json!([lab]));
        system.power_off();
        drop(stop);
        server.await.expect("joined").expect("served");
        assert!(tokio::net::TcpStream::connect(address).await.is_err(), "the listener is closed");
    }
}

#[tokio::test]
async fn boot_responds_with_html_then_not_ready_then_ready() {
    let boot = Boot {
        refused: Duration::from_secs(10),
        bad_gateway: Duration::from_secs(10),
        not_ready: Duration::from_secs(10),
    };
    let served = Served::start(Options { boot, ..Options::default() }).await;
    let request = || served.request(Method::GET, "/system_information").send();
    assert!(request().await.is_err(), "reset");
    served.system.clock().advance(Duration::from_secs(10));
    let response = request().await.expect("a response");
    assert_eq!(response.status(), 502);
    assert_eq!(response.headers()["content-type"], "text/html");
    assert!(response.text().await.expect("a page").starts_with("<html>"));
    served.system.clock().advance(Duration::from_secs(10));
    let response: Value = request().await.expect("a response").json().await.expect("JSON");
    assert_eq!((&response["ready"], &response["version"]), (&json!(false), &json!("2.9.1+build.7")));
    served.system.clock().advance(Duration::from_secs(10));
    let response: Value = request().await.expect("a response").json().await.expect("JSON");
    assert_eq!(response["ready"], true);
}

#[tokio::test]
async fn wrong_password_is_403_and_missing_token_is_401() {
    let served = Served::start(Options::default()).await;
    for path in ["/authenticate", "/auth_extended"] {
        let body = json!({"username": "admin", "password": "wrong"});
        let response = served.request(Method::POST, path).json(&body).send().await.expect("a response");
        assert_eq!(response.status(), 403);
        assert_eq!(response.json::<Value>().await.expect("JSON")["code"], 403);
        for body in ["", "{", "[]", "{\"username\": 7, \"password\": null}", "{\"username\": \"admin\"}"] {
            let response = served.request(Method::POST, path).body(body).send().await.expect("a response");
            assert_eq!(response.status(), 400, "{body}");
        }
    }
    for token in ["", "nonsense", "a.b.c"] {
        let (status, body) = served.get("/labs", token).await;
        assert_eq!((status, &body["code"]), (401, &json!(401)));
        assert!(body["description"].is_string());
    }
    let token = served.log_in().await;
    assert_eq!(served.get("/labs", &token).await, (200, json!([])));
    served.system.clock().advance(Duration::from_secs(24 * 3600));
    assert_eq!(served.get("/labs", &token).await.0, 401);
    let token = served.log_in().await;
    let out = served.request(Method::DELETE, "/logout").bearer_auth(&token).send().await.expect("a response");
    assert_eq!(out.json::<Value>().await.expect("JSON"), json!(true));
    assert_eq!(served.get("/labs", &token).await.0, 401);
}

#[tokio::test]
async fn login_probe_depends_on_the_version() {
    let old = Served::start(Options::default()).await;
    let token = old.log_in().await;
    assert_eq!(old.get("/authok", &token).await, (200, json!("OK")));
    assert_eq!(old.get("/authentication", &token).await.0, 404);
    let new = Served::start(Options { version: Some("2.10.0+build.1".into()), ..Options::default() }).await;
    let token = new.log_in().await;
    let (status, user) = new.get("/authentication", &token).await;
    assert_eq!((status, &user["username"], &user["admin"]), (200, &json!("admin"), &json!(true)));
    assert_eq!(user["id"], fake_cloud::cml::ADMIN_ID);
}

#[tokio::test]
async fn bad_input_gets_a_cml_error() {
    let served = Served::start(Options::default()).await;
    let token = served.log_in().await;
    let send = |method: Method, path: &'static str, body: Vec<u8>| {
        let request = served.request(method, path).bearer_auth(&token).body(body);
        async move { request.send().await.expect("a response") }
    };
    for (method, path, body, code) in [
        (Method::POST, "/licensing/registration", b"{\"token\": \"tr".to_vec(), 400),
        (Method::POST, "/licensing/registration", b"{\"token\": \"\xff\"}".to_vec(), 400),
        (Method::POST, "/licensing/registration", br#"{"token": "not a token"}"#.to_vec(), 400),
        (Method::PUT, "/licensing/product_license", b"\"CML_Imaginary\"".to_vec(), 400),
        (Method::PUT, "/licensing/product_license", b"\"CML_Personal\"".to_vec(), 204),
        (Method::PUT, "/licensing/registration/renew", Vec::new(), 409),
        (Method::PATCH, "/licensing/features", b"[{\"id\": \"x\", \"count\": 1}]".to_vec(), 404),
        (Method::PATCH, "/licensing/features", b"[{\"count\": 1}]".to_vec(), 400),
        (Method::PATCH, "/licensing/features", b"7".to_vec(), 400),
        (Method::POST, "/labs", b"[]".to_vec(), 400),
        (Method::POST, "/labs", vec![b' '; 5 * 1024 * 1024], 413),
        (Method::GET, "/labs/missing", Vec::new(), 404),
        (Method::GET, "/labs/%ff", Vec::new(), 404),
        (Method::GET, "/nowhere", Vec::new(), 404),
    ] {
        let response = send(method, path, body).await;
        assert_eq!(response.status(), code, "{path}");
        if code >= 400 {
            let body: Value = response.json().await.expect("JSON");
            assert_eq!(body["code"], json!(code), "{path}");
            assert!(body["description"].is_string());
        }
    }
    assert_eq!(served.get("/labs/missing", &token).await.1["description"], "Lab not found: missing");
    assert_eq!(served.get("/authok", &token).await.0, 200);
}

#[tokio::test]
async fn fault_rules_apply_before_and_after_the_request() {
    let turn = Arc::new(AtomicUsize::new(0));
    let middleware = Middleware::from_fn(move |request| {
        assert_eq!((request.service, request.subject().as_deref()), (Service::Cml, Some("i-1")));
        if request.operation != "create_lab" {
            return None;
        }
        match turn.fetch_add(1, Ordering::Relaxed) {
            0 => Some(Fault::Respond(bad_gateway_page())),
            1 => Some(Fault::Respond(CmlError::unauthorized().into_response())),
            2 => Some(Fault::Reset),
            3 => Some(Fault::ReplaceResponse(bad_gateway_page())),
            _ => None,
        }
    });
    let served = Served::start(Options { middleware, instance_id: Some("i-1".into()), ..Options::default() }).await;
    let token = served.log_in().await;
    let create = || served.request(Method::POST, "/labs").bearer_auth(&token).send();
    assert_eq!(create().await.expect("a response").status(), 502);
    assert_eq!(create().await.expect("a response").status(), 401);
    assert!(create().await.is_err(), "cut");
    assert_eq!(served.get("/labs", &token).await.1, json!([]), "no request was executed");
    assert_eq!(create().await.expect("a response").status(), 502);
    assert_eq!(served.get("/labs", &token).await.1.as_array().map(Vec::len), Some(1), "the request was executed");
    served.system.pin_stage(Some(BootStage::NotReady));
    let response = served.request(Method::GET, "/system_information").send().await.expect("a response");
    assert_eq!(response.json::<Value>().await.expect("JSON")["ready"], false);
}
