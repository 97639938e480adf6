//! `CmlClient` over TLS, against a fake CML and one on an instance of the fake cloud.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use fake_cloud::cml::{self, Authority, BootStage, CmlServer, NewLab, NewNode};
use fake_cloud::world::Region;
use fake_cloud::{Clock, FakeCloud, Pace, Scenario};
use lcm_sdk::conformance::cml::{Booting, CmlWorld, Registration, suite};
use lcm_sdk::ports::{Cml, CmlTarget};
use lcm_sdk::providers::cml::{CmlClient, CmlOptions, Security};
use lcm_sdk::{FailureKind, Secret};
use serde_json::json;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;

struct World {
    clock: Clock,
    system: CmlServer,
    client: CmlClient,
    port: u16,
    authority: PathBuf,
    server: JoinHandle<()>,
}

impl World {
    async fn start() -> Self {
        let clock = Clock::new(Pace::Manual);
        let system = CmlServer::new(clock.clone(), cml::Options::default());
        system.power_on();
        let lab = system.create_lab(NewLab::default()).expect("a lab");
        for label in ["r1", "r2"] {
            let node = NewNode { label: label.into(), node_definition: "iosv".into(), rest: Default::default() };
            system.add_node(&lab, node).expect("a node");
        }
        let authority = Authority::new().expect("an authority");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let file = std::env::temp_dir().join(format!("lcm-cml-authority-{}-{port}.pem", std::process::id()));
        authority.write_pem(&file).expect("written");
        let certificate = authority.issue(IpAddr::V4(Ipv4Addr::LOCALHOST)).expect("a certificate");
        let server = tokio::spawn(cml::serve_tls(listener, system.clone(), certificate, std::future::pending()));
        let client = client(Security::VerifiedWith(file.clone()), port);
        Self { clock, system, client, port, authority: file, server }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.abort();
        drop(std::fs::remove_file(&self.authority));
    }
}

fn client(security: Security, port: u16) -> CmlClient {
    let mut options = CmlOptions::default();
    options.security = security;
    options.port = port;
    CmlClient::new(options).expect("a client")
}

fn target(address: &str) -> CmlTarget {
    CmlTarget { address: address.into(), username: "admin".into(), password: Secret::from("admin") }
}

#[async_trait::async_trait]
impl CmlWorld for World {
    fn cml(&self) -> &dyn Cml {
        &self.client
    }

    fn target(&self) -> CmlTarget {
        target("127.0.0.1")
    }

    fn nowhere(&self) -> CmlTarget {
        // Another loopback address, on which the port is closed.
        target("127.9.9.9")
    }

    async fn set_booting(&self, booting: Booting) {
        self.system.pin_stage(match booting {
            Booting::Yes => Some(BootStage::BadGateway),
            Booting::No => None,
        });
    }

    async fn pass(&self, time: Duration) {
        self.clock.advance(time);
    }

    async fn start_lab(&self) {
        self.system.record_activity("start_lab", json!({}));
    }

    async fn end_logins(&self) {
        self.system.end_all_logins();
    }

    async fn next_registration(&self, end: Registration) {
        self.system.set_registration(match end {
            Registration::Completes => cml::Registration::Completes,
            Registration::Fails => cml::Registration::Fails,
        });
    }
}

#[tokio::test]
async fn cml_client_conforms_over_tls() {
    suite(&World::start().await).await;
}

#[tokio::test]
async fn self_signed_certificate_is_refused_by_default() {
    let world = World::start().await;
    let failure = client(Security::Verified, world.port).system(&target("127.0.0.1")).await.expect_err("unknown");
    assert_eq!(failure.kind, FailureKind::Unreachable, "{failure}");
    assert!(failure.message.contains("certificate"), "{failure}");
    client(Security::Unverified, world.port).system(&target("127.0.0.1")).await.expect("certificates are not verified");
}

#[tokio::test]
async fn cml_on_an_instance_is_verified() {
    let text = "fleet: [{name: blue, region: us-east-1, state: running, age: 1h}]";
    let scenario = Scenario::parse("blue.yaml", text).expect("a scenario");
    let cloud = FakeCloud::builder().scenario(scenario).start().await.expect("a cloud");
    let address = cloud
        .world()
        .with_ec2(|ec2, now| ec2.regions().flat_map(Region::instances).find_map(|instance| instance.public_ip(now)));
    let endpoints = cloud.endpoints();
    let client = client(Security::VerifiedWith(endpoints.cml_ca_file.clone()), endpoints.cml_port);
    let target = target(&address.expect("an address").to_string());
    let mut system = client.system(&target).await;
    // CML starts in the background.
    for _ in 0..200 {
        if system.is_ok() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(25)).await;
        system = client.system(&target).await;
    }
    assert_eq!(system.expect("a response").ready, Some(true));
    client.telemetry(&target).await.expect("signed in");
    cloud.stop().await;
}
