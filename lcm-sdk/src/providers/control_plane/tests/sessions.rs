//! Session lists: pages, slashes and redirects.

use wiremock::matchers::path_regex;
use wiremock::{Match, Respond};

use super::*;

/// A server with numbered sessions of one worker, which pages as it is told.
struct Pages {
    sessions: usize,
    paging: Paging,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Paging {
    /// `skip` and `limit`.
    Kept,
    /// All sessions in every response.
    Ignored,
    /// At most a hundred sessions per page, in an envelope with a total.
    Capped,
}

impl Respond for Pages {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let number = |name: &str| {
            let value = request.url.query_pairs().find(|(key, _)| key == name).map(|(_, value)| value.into_owned());
            value.and_then(|value| value.parse::<usize>().ok()).expect("a number")
        };
        let (skip, limit) = match self.paging {
            Paging::Kept => (number("skip"), number("limit")),
            Paging::Ignored => (0, usize::MAX),
            Paging::Capped => (number("skip"), 100),
        };
        let session = |number: usize| json!({"id": format!("s-{number}"), "status": "expired", "worker_id": "w-1"});
        let page: Vec<Value> = (0..self.sessions).skip(skip).take(limit).map(session).collect();
        match self.paging {
            Paging::Kept | Paging::Ignored => response(200, page.into()),
            Paging::Capped => response(200, json!({"items": page, "total": self.sessions})),
        }
    }
}

async fn listed(sessions: usize, paging: Paging) -> (usize, usize) {
    let server = MockServer::start().await;
    Mock::given(path("/api/internal/lablet-sessions/")).respond_with(Pages { sessions, paging }).mount(&server).await;
    let listed = client_for(&server).sessions(&"w-1".into()).await.expect("a list");
    let ids: std::collections::BTreeSet<_> = listed.iter().map(|session| session.id.clone()).collect();
    assert_eq!(ids.len(), listed.len(), "no session is listed twice");
    (listed.len(), requests(&server).await.len())
}

#[tokio::test]
async fn sessions_are_read_page_by_page() {
    for (sessions, pages) in [(0, 1), (999, 1), (1000, 2), (1001, 2), (1999, 3), (2500, 3)] {
        assert_eq!(listed(sessions, Paging::Kept).await, (sessions, pages));
    }
}

#[tokio::test]
async fn ignored_paging_neither_loops_nor_duplicates() {
    for (sessions, calls) in [(107, 1), (1000, 2), (1500, 1)] {
        assert_eq!(listed(sessions, Paging::Ignored).await, (sessions, calls));
    }
}

#[tokio::test]
async fn totals_lead_to_the_last_page() {
    assert_eq!(listed(250, Paging::Capped).await, (250, 3));
    assert_eq!(listed(100, Paging::Capped).await, (100, 1));
}

/// Matches the first page.
struct FirstPage;

impl Match for FirstPage {
    fn matches(&self, request: &Request) -> bool {
        request.url.query_pairs().any(|(name, value)| name == "skip" && value == "0")
    }
}

#[tokio::test]
async fn list_that_changes_between_pages_is_read_again() {
    let server = MockServer::start().await;
    let at = "/api/internal/lablet-sessions/";
    let page = |numbers: std::ops::Range<usize>| {
        let session = |number| json!({"id": format!("s-{number}"), "status": "expired", "worker_id": "w-1"});
        response(200, numbers.map(session).collect::<Vec<_>>().into())
    };
    // Five sessions end after the first page: the others move forward, and five would be missed.
    Mock::given(path(at)).and(FirstPage).respond_with(page(0..1000)).up_to_n_times(1).mount(&server).await;
    Mock::given(path(at)).and(FirstPage).respond_with(page(5..1005)).mount(&server).await;
    Mock::given(path(at)).respond_with(page(1004..1010)).mount(&server).await;
    let listed = client_for(&server).sessions(&"w-1".into()).await.expect("a list");
    assert_eq!(listed.len(), 1005);
    assert_eq!(requests(&server).await.len(), 4);
}

#[tokio::test]
async fn path_without_a_slash_is_remembered() {
    let server = MockServer::start().await;
    serve(&server, "GET", "/api/internal/lablet-sessions", response(200, json!([]))).await;
    let missing = response(404, json!({"detail": "Not Found"}));
    serve(&server, "GET", "/api/internal/lablet-sessions/", missing).await;
    let client = client_for(&server);
    for _ in 0..2 {
        client.sessions(&"w-1".into()).await.expect("a list");
    }
    let at = "GET /api/internal/lablet-sessions";
    assert_eq!(lines(&server).await, [format!("{at}/"), at.to_owned(), at.to_owned()]);
}

fn redirect(status: u16, location: &str) -> ResponseTemplate {
    ResponseTemplate::new(status).insert_header("location", location)
}

#[tokio::test]
async fn reads_follow_redirects_within_the_origin() {
    for status in [307, 308] {
        let server = MockServer::start().await;
        let target = format!("{}/elsewhere/w-1?x=1", server.uri());
        serve(&server, "GET", "/api/internal/workers/w-1", redirect(status, &target)).await;
        let record = response(200, json!({"id": "w-1", "status": "running"}));
        Mock::given(path("/elsewhere/w-1")).and(header("x-api-key", "k3y")).respond_with(record).mount(&server).await;
        let read = client_for(&server).worker(&"w-1".into()).await.expect("a response");
        assert_eq!(read.expect("a worker").id, "w-1".into());
    }
}

#[tokio::test]
async fn redirect_to_another_origin_is_not_followed() {
    let (server, other) = (MockServer::start().await, MockServer::start().await);
    Mock::given(any()).respond_with(response(200, json!([]))).mount(&other).await;
    let target = format!("{}/api/internal/workers", other.uri());
    serve(&server, "GET", "/api/internal/workers", redirect(307, &target)).await;
    let failure = client_for(&server).workers(&Scope::active()).await.expect_err("another origin");
    assert_eq!(failure.kind, FailureKind::Refused, "{failure}");
    assert!(failure.message.contains(&other.uri()), "{failure}");
    assert_eq!(requests(&other).await.len(), 0, "the key must not leave the origin");
}

#[tokio::test]
async fn redirects_end() {
    let server = MockServer::start().await;
    Mock::given(path_regex(".*")).respond_with(redirect(307, "/again")).mount(&server).await;
    let options = ControlPlaneOptions::new(server.uri(), Secret::from("k3y")).with_retries(Vec::new());
    let client = ControlPlaneClient::new(options).expect("a client");
    client.workers(&Scope::active()).await.expect_err("a loop");
    assert_eq!(requests(&server).await.len(), 4);
}

#[tokio::test]
async fn redirected_write_is_not_repeated() {
    let server = MockServer::start().await;
    Mock::given(any()).respond_with(redirect(307, "/elsewhere")).mount(&server).await;
    let ended = client_for(&server).terminate_session(&"s-1".into(), SessionEnd::DrainTimeout, Fence(None)).await;
    assert!(ended.is_err());
    assert_eq!(requests(&server).await.len(), 1);
}
