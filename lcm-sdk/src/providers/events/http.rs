//! Publishes events to an HTTP endpoint.

use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Client, Url};

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::secret::Secret;
use crate::ports::{CloudEvent, Events};
use crate::providers::http::{self, Reply, SetupError};

/// Maximum length of a response body in bytes. Only errors are used.
const MAX_BODY: usize = 64 * 1024;

/// Configuration of an [`HttpEvents`] sink.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SinkOptions {
    /// URL of the sink. It is never printed, because it may hold credentials.
    pub url: Secret,
    /// Bearer token. Default: none.
    pub token: Option<Secret>,
    /// Time limit of one attempt. Default: 5 s.
    pub timeout: Duration,
    /// Delay before each retry; its length is the number of retries. Default: 0.5 and 2 s.
    pub retries: Vec<Duration>,
}

impl SinkOptions {
    /// Options with default limits and no token.
    pub fn new(url: impl Into<Secret>) -> Self {
        let retries = [500, 2000].map(Duration::from_millis).to_vec();
        Self { url: url.into(), token: None, timeout: Duration::from_secs(5), retries }
    }

    /// Sets the bearer token.
    #[must_use]
    pub fn with_token(self, token: Secret) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Sets the time limit of one attempt.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Sets the delay before each retry.
    #[must_use]
    pub fn with_retries(self, retries: Vec<Duration>) -> Self {
        Self { retries, ..self }
    }
}

/// Posts events as CloudEvents in JSON (`application/cloudevents+json`). Requests to an `https://` URL use the proxy of
/// the environment, if there is one.
///
/// # Guarantees
/// The number of attempts per event is bounded. An event may arrive twice, with the same ID.
///
/// # Errors
/// The failure of the last attempt. A refused event is not retried.
pub struct HttpEvents {
    client: Client,
    url: Url,
    token: Option<HeaderValue>,
    options: SinkOptions,
}

impl HttpEvents {
    /// Creates a sink. Makes no connection.
    ///
    /// # Errors
    /// If the URL or the token is invalid.
    pub fn new(options: SinkOptions) -> Result<Self, SetupError> {
        const SERVICE: &str = "the event sink";
        let url = http::address(SERVICE, options.url.expose())?;
        let token = match &options.token {
            None => None,
            Some(token) => {
                let header = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
                let mut header = header.map_err(|_| SetupError::Key { of: SERVICE })?;
                header.set_sensitive(true);
                Some(header)
            }
        };
        let client = match url.scheme() {
            "http" => http::plain_client(options.timeout).no_proxy(),
            _ => http::client(options.timeout),
        };
        let client = client.build().map_err(SetupError::Client)?;
        Ok(Self { client, url, token, options })
    }

    async fn attempt(&self, body: &str) -> Result<(), CallFailure> {
        let mut request = self.client.post(self.url.clone()).header(CONTENT_TYPE, "application/cloudevents+json");
        if let Some(token) = &self.token {
            request = request.header("Authorization", token.clone());
        }
        let response = request.body(body.to_owned()).send().await.map_err(http::failure)?;
        Reply::read(response, MAX_BODY).await?.success().map(drop)
    }
}

#[async_trait]
impl Events for HttpEvents {
    async fn publish(&self, event: &CloudEvent) -> Result<(), CallFailure> {
        let body = serde_json::to_string(event);
        let body = body.map_err(|error| CallFailure::new(FailureKind::Refused, error.to_string()))?;
        let mut delays = self.options.retries.iter();
        loop {
            let Err(failure) = self.attempt(&body).await else { return Ok(()) };
            match delays.next() {
                Some(delay) if failure.kind.is_retryable() => tokio::time::sleep(*delay).await,
                Some(_) | None => {
                    let token = self.options.token.as_ref().map(Secret::expose);
                    let secrets = [token, self.url.query(), self.url.password()];
                    return Err(http::scrub(failure, &secrets.map(Option::unwrap_or_default)));
                }
            }
        }
    }
}

/// Shows the host only, because the URL may hold credentials.
impl fmt::Debug for HttpEvents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpEvents").field("host", &self.url.host_str()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use wiremock::matchers::{header, method};
    use wiremock::{Mock, MockServer, ResponseTemplate};

    use super::*;
    use crate::lifecycle::event::Event;

    fn sink(url: &str) -> HttpEvents {
        let retries = vec![Duration::from_millis(1); 2];
        let token = Some(Secret::from("s3cret"));
        HttpEvents::new(SinkOptions { retries, token, ..SinkOptions::new(url.to_owned()) }).expect("a client")
    }

    fn event() -> CloudEvent {
        CloudEvent::new("w-1", &Event::DrainCompleted, "2026-02-06T08:00:00Z".parse().expect("valid"))
    }

    #[tokio::test]
    async fn failed_event_is_retried_unchanged() {
        let server = MockServer::start().await;
        let failing = Mock::given(method("POST")).respond_with(ResponseTemplate::new(503)).up_to_n_times(2);
        failing.mount(&server).await;
        let taking = Mock::given(header("content-type", "application/cloudevents+json"));
        taking.respond_with(ResponseTemplate::new(202)).mount(&server).await;
        sink(&server.uri()).publish(&event()).await.expect("the third attempt");
        let seen = server.received_requests().await.expect("recorded");
        assert_eq!(seen.len(), 3);
        assert!(seen.iter().all(|request| request.body == seen[0].body));
    }

    #[tokio::test]
    async fn refusal_is_final_and_shows_no_secret() {
        let server = MockServer::start().await;
        let message = "bad token s3cret at /events?key=qu3ry with p4ssword";
        let repeats = ResponseTemplate::new(403).set_body_json(serde_json::json!({"detail": message}));
        Mock::given(method("POST")).respond_with(repeats).expect(1).mount(&server).await;
        let sink = sink(&format!("{}/events?key=qu3ry", server.uri().replace("//", "//lcm:p4ssword@")));
        let failure = sink.publish(&event()).await.expect_err("refused");
        assert_eq!(failure.kind, FailureKind::Refused);
        let shown = format!("{failure} {failure:?} {sink:?}");
        assert!(["s3cret", "qu3ry", "p4ssword"].iter().all(|secret| !shown.contains(secret)), "{shown}");
    }
}
