//! Paths, heads and bodies that are too long, on every port: the right refusal, and the next request is served.

#[expect(dead_code, reason = "some of it is for other tests")]
mod support;

use std::net::SocketAddr;

use fake_cloud::cml::{self, Authority, CmlServer};
use fake_cloud::{Clock, FakeCloud, Pace};
use serde_json::Value;
use support::{Answer, exchange, signed};
use tokio::net::TcpListener;

/// Every port that speaks HTTP, with a request that is served there.
struct Place {
    name: &'static str,
    address: SocketAddr,
    path: &'static str,
    headers: String,
    longest_body: usize,
}

struct World {
    cloud: FakeCloud,
    places: Vec<Place>,
}

async fn world() -> World {
    let cloud = FakeCloud::start().await.expect("a cloud");
    let at = |url: &str| url.trim_start_matches("http://").parse::<SocketAddr>().expect("an address");
    let system = CmlServer::new(Clock::new(Pace::Manual), cml::Options::default());
    system.power_on();
    let token = system.log_in("admin", "admin").expect("a token");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let cml_at = listener.local_addr().expect("an address");
    tokio::spawn(cml::serve_http(listener, system, std::future::pending()));
    let endpoints = cloud.endpoints();
    let key = format!("x-api-key: {}\r\n", endpoints.control_plane_api_key);
    let place = |name, address, path, headers: &str, longest_body| Place {
        name,
        address,
        path,
        headers: headers.to_owned(),
        longest_body,
    };
    let json = "content-type: application/json\r\n";
    let places = vec![
        place("the admin API", at(&endpoints.aws_url), "/_fake/clock/advance", json, 2 << 20),
        place("the control plane", at(&endpoints.control_plane_url), "/api/internal/workers", &key, 16 << 20),
        place("CML", cml_at, "/api/v0/labs", &format!("authorization: Bearer {token}\r\n"), 4 << 20),
    ];
    World { cloud, places }
}

impl Place {
    async fn ask(&self, method: &str, path: &str, more: &str, body: &[u8]) -> Answer {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{}{more}content-length: {}\r\n\r\n",
            self.headers,
            body.len()
        );
        exchange(self.address, &[head.as_bytes(), body].concat())
            .await
            .unwrap_or_else(|| panic!("{} answers", self.name))
    }

    async fn assert_alive(&self) {
        let status = self.ask("GET", "/", "", b"").await.status;
        assert!((200..500).contains(&status), "{}: {status}", self.name);
    }
}

#[tokio::test]
async fn a_body_that_is_too_long_is_refused_in_the_words_of_the_service() {
    let World { cloud, places } = world().await;
    for place in &places {
        for length in [place.longest_body + 1, place.longest_body + (3 << 20), 1000] {
            // Not JSON: what is short enough is looked at, and refused for that.
            let answer = place.ask("POST", place.path, "", &vec![b'x'; length]).await;
            let is_right = if length > 1000 { answer.status == 413 } else { matches!(answer.status, 400 | 422) };
            assert!(is_right, "{} with {length} bytes: {} {}", place.name, answer.status, answer.text());
            let told: Value = serde_json::from_slice(&answer.body).expect("JSON");
            assert!(told["error"].is_string() || told["description"].is_string(), "{told}");
        }
        place.assert_alive().await;
    }
    cloud.stop().await;
}

#[tokio::test]
async fn a_body_that_is_not_framed_as_it_says_is_refused_and_not_called_too_long() {
    let World { cloud, places } = world().await;
    for place in &places {
        let head = format!(
            "POST {} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{}transfer-encoding: chunked\r\n\r\nzz\r\n{{}}\r\n",
            place.path, place.headers
        );
        let answer = exchange(place.address, head.as_bytes()).await.expect("an answer");
        assert_eq!(answer.status / 100, 4, "{}: {}", place.name, answer.text());
        assert_ne!(answer.status, 413, "{}: {}", place.name, answer.text());
        place.assert_alive().await;
    }
    cloud.stop().await;
}

#[tokio::test]
async fn a_head_that_is_too_long_is_refused() {
    let World { cloud, places } = world().await;
    let many: String = (0..200).map(|number| format!("x-{number}: y\r\n")).collect();
    let long = format!("x-long: {}\r\n", "y".repeat(600_000));
    for place in &places {
        for head in [&many, &long] {
            assert_eq!(place.ask("GET", "/", head, b"").await.status, 431, "{}", place.name);
        }
        assert_eq!(place.ask("GET", &format!("/{}", "p".repeat(100_000)), "", b"").await.status, 414, "{}", place.name);
        place.assert_alive().await;
    }
    let aws = places[0].address;
    for head in [&many, &long] {
        let lines: Vec<&str> = head.trim_end().split("\r\n").collect();
        let answer = exchange(aws, &signed("ec2", &lines, b"Action=DescribeRegions")).await.expect("an answer");
        assert_eq!(answer.status, 431);
    }
    assert_eq!(exchange(aws, &signed("ec2", &[], b"Action=DescribeRegions")).await.expect("an answer").status, 200);
    cloud.stop().await;
}

#[tokio::test]
async fn a_cml_that_somebody_speaks_to_in_the_clear_goes_on_for_everybody_else() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    let system = CmlServer::new(Clock::new(Pace::Manual), cml::Options::default());
    system.power_on();
    let authority = Authority::new().expect("an authority");
    let certificate = authority.issue(address.ip()).expect("a certificate");
    tokio::spawn(cml::serve_tls(listener, system, certificate, std::future::pending()));
    assert!(exchange(address, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.is_none(), "no answer without TLS");
    let root = reqwest::Certificate::from_pem(authority.pem().as_bytes()).expect("a certificate");
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([root]).build().expect("a client");
    let url = format!("https://{address}/api/v0/system_information");
    assert_eq!(client.get(url).send().await.expect("an answer").status(), 200);
}
