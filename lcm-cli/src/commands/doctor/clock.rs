//! The clock of this host, compared with those of the control plane and of AWS.

use std::path::Path;
use std::time::Duration;

use lcm_sdk::Timestamp;
use lcm_sdk::chrono::DateTime;
use lcm_sdk::ports::{Clock as _, SystemClock};
use reqwest::{Certificate, Client};

use super::{CALL_TIMEOUT, Check, Subject};

/// Difference that is normal: a date has no fractions of a second, and the response takes a while.
const NORMAL: Duration = Duration::from_secs(5);

/// Difference from which on AWS refuses signed requests.
const REFUSED: Duration = Duration::from_secs(300);

pub(super) async fn check(subject: &Subject<'_>) -> Vec<Check> {
    let settings = subject.settings;
    let control_plane = &settings.control_plane;
    let health = format!("{}/health", control_plane.control_plane_api_url.trim_end_matches('/'));
    let aws = aws_url(&settings.aws.aws_default_region);
    let (records, aws) =
        tokio::join!(server_time(&health, control_plane.control_plane_ca_file.as_deref()), server_time(&aws, None),);
    let checks = [("the control plane", records), ("AWS", aws)].map(|(server, answer)| match answer {
        Err(problem) => {
            Check::warn("clock", format!("{server}: {problem}"), "compare the clock of this host with another one")
        }
        Ok((time, now)) => compare(server, time, now),
    });
    checks.into()
}

/// The address of EC2, as the AWS SDK determines it. A page for a browser needs no signature.
fn aws_url(region: &str) -> String {
    let variables = ["AWS_ENDPOINT_URL_EC2", "AWS_ENDPOINT_URL"];
    let set = variables.into_iter().find_map(|name| std::env::var(name).ok().filter(|url| !url.is_empty()));
    set.unwrap_or_else(|| {
        let domain = if region.starts_with("cn-") { "amazonaws.com.cn" } else { "amazonaws.com" };
        format!("https://ec2.{region}.{domain}/")
    })
}

fn compare(server: &str, time: Timestamp, now: Timestamp) -> Check {
    let difference = time.signed_duration_since(now).abs().to_std().unwrap_or(Duration::MAX);
    let side = if time > now { "behind" } else { "ahead of" };
    let found = format!("{} s {side} {server}", difference.as_secs());
    let mend = "synchronize the clock of this host, with chrony for example";
    match difference {
        normal if normal <= NORMAL => Check::ok("clock", format!("as that of {server}, within 5 s")),
        bearable if bearable < REFUSED => Check::warn("clock", found, mend),
        _ => Check::fail("clock", format!("{found}: AWS refuses requests whose time is five minutes off"), mend),
    }
}

/// The time in a response of a server, of any status, and the time of this host.
async fn server_time(url: &str, ca_file: Option<&Path>) -> Result<(Timestamp, Timestamp), String> {
    let http = Client::builder().timeout(CALL_TIMEOUT).redirect(reqwest::redirect::Policy::none());
    let http = match (ca_file, url.starts_with("https")) {
        // A minimal container has no certificate authorities, and plain HTTP needs none.
        (_, false) => http.tls_certs_only(std::iter::empty()),
        (Some(file), true) => {
            let pem = std::fs::read(file).map_err(|error| format!("{}: {error}", file.display()))?;
            let authorities = Certificate::from_pem_bundle(&pem).map_err(|error| error.to_string())?;
            http.tls_certs_only(authorities)
        }
        (None, true) => http,
    };
    let http = http.build().map_err(|error| error.to_string())?;
    let response = http.get(url).header("accept", "text/html").send().await;
    let response = response.map_err(|error| format!("no response: {}", error.without_url()))?;
    let now = SystemClock.now();
    let date = response.headers().get("date").and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| DateTime::parse_from_rfc2822(date).ok());
    let date = date.ok_or("the response has no date")?;
    Ok((date.to_utc(), now))
}
