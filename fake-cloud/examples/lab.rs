//! One CML and one control plane on free ports, for tests in other languages.
//!
//! Prints one line of JSON, then serves until its standard input ends, so it never outlives its parent process.
//! Options: `--version 2.10.0+build.1`, `--token-seconds 5`, `--stage-seconds 60` (how long each stage of booting
//! takes), `--clock x60`.

use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use fake_cloud::cml::{self, Authority, CmlServer};
use fake_cloud::control_plane::{self, Records};
use fake_cloud::{Clock, Pace};
use serde_json::json;
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let mut options = cml::Options::default();
    let mut pace = Pace::Real;
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        let value = arguments.next().unwrap_or_default();
        match name.as_str() {
            "--version" => options.version = Some(value),
            "--token-seconds" => options.token_lifetime = Duration::from_secs(number(&value)?),
            "--stage-seconds" => {
                let each = Duration::from_secs(number(&value)?);
                options.boot = cml::Boot { refused: each, bad_gateway: each, not_ready: each };
            }
            "--clock" => pace = Pace::Accelerated(number(value.trim_start_matches('x'))?),
            _ => return Err(std::io::Error::other(format!("unknown option {name}"))),
        }
    }
    let clock = Clock::new(pace);
    let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let authority = Authority::new()?;
    let ca_file = std::env::temp_dir().join(format!("fake-cml-ca-{}.pem", std::process::id()));
    authority.write_pem(&ca_file)?;
    let system = CmlServer::new(clock.clone(), options);
    let [tls, plain, control_plane] =
        [TcpListener::bind((here, 0)).await?, TcpListener::bind((here, 0)).await?, TcpListener::bind((here, 0)).await?];
    let line = json!({
        "cml_url": format!("https://{}", tls.local_addr()?),
        "cml_http_url": format!("http://{}", plain.local_addr()?),
        "cml_ca_file": ca_file,
        "control_plane_url": format!("http://{}", control_plane.local_addr()?),
        "api_key": control_plane::Options::default().api_key,
    });
    let certificate = authority.issue(here)?;
    let never = std::future::pending;
    tokio::spawn(cml::serve_tls(tls, system.clone(), certificate, never()));
    tokio::spawn(cml::serve_http(plain, system, never()));
    let records = Records::new(clock);
    tokio::spawn(control_plane::serve(control_plane, records, control_plane::Options::default(), never()));
    println!("{line}");
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    std::fs::remove_file(ca_file)
}

fn number<T: std::str::FromStr>(text: &str) -> std::io::Result<T> {
    text.parse().map_err(|_| std::io::Error::other(format!("not a number: {text}")))
}
