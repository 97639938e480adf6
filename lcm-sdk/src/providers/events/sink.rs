use std::fmt;
use std::time::Duration;

use async_trait::async_trait;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Client, Url};

use crate::lifecycle::failure::{CallFailure, FailureKind};
use crate::lifecycle::secret::Secret;
use crate::ports::{CloudEvent, Events};
use crate::providers::http::{self, Reply, SetupError};

/// The longest answer of a sink that is read. Nobody looks at it unless it is an error.
const MAX_ANSWER: usize = 64 * 1024;

/// How an HTTP sink is reached.
#[derive(Debug, Clone)]
pub struct SinkOptions {
    /// Its address. It is never shown: it may carry credentials.
    pub url: Secret,
    /// Sent as a bearer token, if there is one.
    pub token: Option<Secret>,
    /// How long one try may take.
    pub timeout: Duration,
    /// How long to wait before each repetition; as many as there are.
    pub retries: Vec<Duration>,
}

impl SinkOptions {
    /// A sink without a token: 5 s for a try, two repetitions.
    pub fn new(url: impl Into<Secret>) -> Self {
        let retries = [500, 2000].map(Duration::from_millis).to_vec();
        Self { url: url.into(), token: None, timeout: Duration::from_secs(5), retries }
    }
}

/// Posts events as CloudEvents in JSON (`application/cloudevents+json`). To an https address it goes through the proxy
/// the environment names, if it names one.
///
/// # Guarantees
/// An event is tried a bounded number of times. It may arrive twice, under the same id.
///
/// # Errors
/// What the last try failed with. A sink that refuses an event is not asked again.
pub struct HttpEvents {
    client: Client,
    url: Url,
    token: Option<HeaderValue>,
    options: SinkOptions,
}

impl HttpEvents {
    /// Posts to a sink.
    ///
    /// # Errors
    /// When address or token cannot be used.
    pub fn new(options: SinkOptions) -> Result<Self, SetupError> {
        const OF: &str = "the event sink";
        let url = http::address(OF, options.url.expose())?;
        let token = match &options.token {
            None => None,
            Some(token) => {
                let header = HeaderValue::from_str(&format!("Bearer {}", token.expose()));
                let mut header = header.map_err(|_| SetupError::Key { of: OF })?;
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
        Reply::read(response, MAX_ANSWER).await?.success().map(drop)
    }
}

#[async_trait]
impl Events for HttpEvents {
    async fn publish(&self, event: &CloudEvent) -> Result<(), CallFailure> {
        let written = serde_json::to_string(event);
        let body = written.map_err(|error| CallFailure::new(FailureKind::Refused, error.to_string()))?;
        let mut waits = self.options.retries.iter();
        loop {
            let Err(failure) = self.attempt(&body).await else { return Ok(()) };
            match waits.next() {
                Some(wait) if failure.kind.is_retryable() => tokio::time::sleep(*wait).await,
                Some(_) | None => {
                    let token = self.options.token.as_ref().map(Secret::expose);
                    let secrets = [token, self.url.query(), self.url.password()];
                    return Err(http::scrub(failure, &secrets.map(Option::unwrap_or_default)));
                }
            }
        }
    }
}

/// Shows the host alone.
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
        CloudEvent::about("w-1", &Event::DrainCompleted, "2026-02-06T08:00:00Z".parse().expect("valid"))
    }

    #[tokio::test]
    async fn a_sink_that_hiccups_is_asked_again_with_the_same_event() {
        let server = MockServer::start().await;
        let failing = Mock::given(method("POST")).respond_with(ResponseTemplate::new(503)).up_to_n_times(2);
        failing.mount(&server).await;
        let taking = Mock::given(header("content-type", "application/cloudevents+json"));
        taking.respond_with(ResponseTemplate::new(202)).mount(&server).await;
        sink(&server.uri()).publish(&event()).await.expect("the third try");
        let seen = server.received_requests().await.expect("recorded");
        assert_eq!(seen.len(), 3);
        assert!(seen.iter().all(|request| request.body == seen[0].body));
    }

    #[tokio::test]
    async fn a_refusal_is_final_and_shows_neither_token_nor_what_the_address_carries() {
        let server = MockServer::start().await;
        let words = "bad token s3cret at /events?key=qu3ry with p4ssword";
        let repeats = ResponseTemplate::new(403).set_body_json(serde_json::json!({"detail": words}));
        Mock::given(method("POST")).respond_with(repeats).expect(1).mount(&server).await;
        let sink = sink(&format!("{}/events?key=qu3ry", server.uri().replace("//", "//lcm:p4ssword@")));
        let failure = sink.publish(&event()).await.expect_err("refused");
        assert_eq!(failure.kind, FailureKind::Refused);
        let told = format!("{failure} {failure:?} {sink:?}");
        assert!(["s3cret", "qu3ry", "p4ssword"].iter().all(|secret| !told.contains(secret)), "{told}");
    }
}
