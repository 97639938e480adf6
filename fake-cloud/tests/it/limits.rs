//! Tests of limits on paths, headers and bodies on every HTTP port.

use std::net::SocketAddr;

use fake_cloud::cml::{self, Authority, CmlServer};
use fake_cloud::{Clock, FakeCloud, Pace};
use serde_json::Value;
use tokio::net::TcpListener;

use crate::support::{Response, exchange, signed};

/// An HTTP port and a valid request to it.
struct Target {
    name: &'static str,
    address: SocketAddr,
    path: &'static str,
    headers: String,
    max_body: usize,
}

struct Fixture {
    cloud: FakeCloud,
    targets: Vec<Target>,
}

async fn start() -> Fixture {
    let cloud = FakeCloud::start().await.expect("a cloud");
    let parse = |url: &str| url.trim_start_matches("http://").parse::<SocketAddr>().expect("an address");
    let server = CmlServer::new(Clock::new(Pace::Manual), cml::Options::default());
    server.power_on();
    let token = server.log_in("admin", "admin").expect("a token");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let cml_address = listener.local_addr().expect("an address");
    tokio::spawn(cml::serve_http(listener, server, std::future::pending()));
    let endpoints = cloud.endpoints();
    let key = format!("x-api-key: {}\r\n", endpoints.control_plane_api_key);
    let target = |name, address, path, headers: &str, max_body| Target {
        name,
        address,
        path,
        headers: headers.to_owned(),
        max_body,
    };
    let (json, import) = ("content-type: application/json\r\n", "/api/internal/workers/bulk-import");
    let targets = vec![
        target("the admin API", parse(&endpoints.aws_url), "/_fake/clock/advance", json, 2 << 20),
        target("the control plane", parse(&endpoints.control_plane_url), import, &key, 16 << 20),
        target("CML", cml_address, "/api/v0/labs", &format!("authorization: Bearer {token}\r\n"), 4 << 20),
    ];
    Fixture { cloud, targets }
}

impl Target {
    async fn send(&self, method: &str, path: &str, more: &str, body: &[u8]) -> Response {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{}{more}content-length: {}\r\n\r\n",
            self.headers,
            body.len()
        );
        exchange(self.address, &[head.as_bytes(), body].concat())
            .await
            .unwrap_or_else(|| panic!("no response from {}", self.name))
    }

    async fn assert_alive(&self) {
        let status = self.send("GET", "/", "", b"").await.status;
        assert!((200..500).contains(&status), "{}: {status}", self.name);
    }
}

#[tokio::test]
async fn long_bodies_are_rejected_by_every_service() {
    let Fixture { cloud, targets } = start().await;
    for target in &targets {
        for length in [target.max_body + 1, target.max_body + (3 << 20), 1000] {
            // A short body is rejected because it is not JSON.
            let response = target.send("POST", target.path, "", &vec![b'x'; length]).await;
            let is_expected = if length > 1000 { response.status == 413 } else { matches!(response.status, 400 | 422) };
            assert!(is_expected, "{} with {length} bytes: {} {}", target.name, response.status, response.text());
            let body: Value = serde_json::from_slice(&response.body).expect("JSON");
            // One field for each: the admin API, CML and the original control plane.
            assert!(["error", "description", "detail"].iter().any(|field| !body[field].is_null()), "{body}");
        }
        target.assert_alive().await;
    }
    cloud.stop().await;
}

#[tokio::test]
async fn invalid_chunks_are_rejected() {
    let Fixture { cloud, targets } = start().await;
    for target in &targets {
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{}transfer-encoding: chunked\r\n\r\nzz\r\n{{}}\r\n",
            target.path, target.headers
        );
        let response = exchange(target.address, head.as_bytes()).await.expect("a response");
        assert_eq!(response.status / 100, 4, "{}: {}", target.name, response.text());
        assert_ne!(response.status, 413, "{}: {}", target.name, response.text());
        target.assert_alive().await;
    }
    cloud.stop().await;
}

#[tokio::test]
async fn long_heads_are_rejected() {
    let Fixture { cloud, targets } = start().await;
    let many: String = (0..200).map(|number| format!("x-{number}: y\r\n")).collect();
    let long = format!("x-long: {}\r\n", "y".repeat(600_000));
    for target in &targets {
        for head in [&many, &long] {
            assert_eq!(target.send("GET", "/", head, b"").await.status, 431, "{}", target.name);
        }
        assert_eq!(
            target.send("GET", &format!("/{}", "p".repeat(100_000)), "", b"").await.status,
            414,
            "{}",
            target.name
        );
        target.assert_alive().await;
    }
    let aws = targets[0].address;
    for head in [&many, &long] {
        let lines: Vec<&str> = head.trim_end().split("\r\n").collect();
        let response = exchange(aws, &signed("ec2", &lines, b"Action=DescribeRegions")).await.expect("a response");
        assert_eq!(response.status, 431);
    }
    assert_eq!(exchange(aws, &signed("ec2", &[], b"Action=DescribeRegions")).await.expect("a response").status, 200);
    cloud.stop().await;
}

#[tokio::test]
async fn plain_http_does_not_stop_a_tls_server() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let server = CmlServer::new(Clock::new(Pace::Manual), cml::Options::default());
    server.power_on();
    let authority = Authority::new().expect("an authority");
    let certificate = authority.issue(address.ip()).expect("a certificate");
    tokio::spawn(cml::serve_tls(listener, server, certificate, std::future::pending()));
    assert!(exchange(address, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.is_none(), "no response without TLS");
    let root = reqwest::Certificate::from_pem(authority.pem().as_bytes()).expect("a certificate");
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([root]).build().expect("a client");
    let url = format!("https://{address}/api/v0/system_information");
    assert_eq!(client.get(url).send().await.expect("a response").status(), 200);
}
