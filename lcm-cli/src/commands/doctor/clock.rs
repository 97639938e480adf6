//! The clock of this host, compared with that of the control plane.

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
    let check = match server_time(subject).await {
        Err(problem) => Check::warn("clock", problem, "compare the clock of this host with another one"),
        Ok((server, now)) => compare(server, now),
    };
    vec![check]
}

fn compare(server: Timestamp, now: Timestamp) -> Check {
    let difference = server.signed_duration_since(now).abs().to_std().unwrap_or(Duration::MAX);
    let side = if server > now { "behind" } else { "ahead of" };
    let found = format!("{} s {side} the control plane", difference.as_secs());
    let mend = "synchronize the clock of this host, with chrony for example";
    match difference {
        normal if normal <= NORMAL => Check::ok("clock", "as the control plane's, within 5 s"),
        bearable if bearable < REFUSED => Check::warn("clock", found, mend),
        _ => Check::fail("clock", format!("{found}: AWS refuses requests whose time is five minutes off"), mend),
    }
}

/// The time in a response of the control plane, of any status, and the time of this host.
async fn server_time(subject: &Subject<'_>) -> Result<(Timestamp, Timestamp), String> {
    let settings = &subject.settings.control_plane;
    let http = Client::builder().timeout(CALL_TIMEOUT).redirect(reqwest::redirect::Policy::none());
    let http = match (&settings.control_plane_ca_file, settings.control_plane_api_url.starts_with("https")) {
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
    let url = format!("{}/health", settings.control_plane_api_url.trim_end_matches('/'));
    let response = http.get(url).send().await;
    let response = response.map_err(|error| format!("the control plane does not respond: {}", error.without_url()))?;
    let now = SystemClock.now();
    let date = response.headers().get("date").and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| DateTime::parse_from_rfc2822(date).ok());
    let date = date.ok_or("the control plane sends no date")?;
    Ok((date.to_utc(), now))
}
