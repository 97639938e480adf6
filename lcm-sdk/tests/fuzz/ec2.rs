//! EC2 responses, through the SDK's client over a socket.

use lcm_sdk::ports::Compute as _;
use lcm_sdk::providers::aws::{Account, Ec2, Tuning};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{FailureKind, Instance, InstanceId, Lookup, Secret};
use proptest::prelude::*;
use proptest::sample::{Index, select};

use crate::canned_server::{CannedServer, any_status, response};
use crate::cases::{any_bytes, any_text, check, like_bytes};

const CODES: &[&str] = &[
    "InvalidInstanceID.NotFound",
    "InvalidInstanceID.Malformed",
    "RequestLimitExceeded",
    "UnauthorizedOperation",
    "InsufficientInstanceCapacity",
    "InternalError",
    "AuthFailure",
    "Nonsense",
    "",
];

fn error_document(code: &str, message: &str) -> Vec<u8> {
    let xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    format!("{xml}<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors><RequestID>r</RequestID></Response>").into_bytes()
}

fn reservation(id: &str, state: &str) -> String {
    format!(
        "<item><reservationId>r-1</reservationId><instancesSet><item><instanceId>{id}</instanceId>\
         <instanceState><code>16</code><name>{state}</name></instanceState><launchTime>2026-02-06T08:00:00.000Z</launchTime>\
         <privateIpAddress>10.0.0.1</privateIpAddress><tagSet><item><key>team</key><value>R&amp;D</value></item></tagSet>\
         </item></instancesSet></item>"
    )
}

fn instances_document(reservations: &str) -> Vec<u8> {
    format!(
        "<DescribeInstancesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>r</requestId>\
         <reservationSet>{reservations}</reservationSet></DescribeInstancesResponse>"
    )
    .into_bytes()
}

fn ids() -> [InstanceId; 2] {
    ["i-0123456789abcdef0", "i-0123456789abcdef1"].map(InstanceId::from)
}

/// Describes [`ids`] with a new account: one that failed often has its circuit open for a while.
async fn describe(server: &CannedServer) -> Vec<Lookup<Instance>> {
    let tuning = Tuning::default().with_max_attempts(1).with_rate_factor(1e6);
    let url = format!("http://{}", server.address);
    let account = Account::with_endpoint(&url, "AKIA", &Secret::from("canary-aws"), tuning, &Telemetry::default());
    Ec2::new(account).instances("us-east-1", &ids()).await
}

#[test]
fn only_ec2_declares_an_instance_absent() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = CannedServer::start(&runtime);
    let good = prop_oneof![
        (select(CODES), any_text()).prop_map(|(code, text)| error_document(code, &text)),
        select(vec!["running", "stopped", "asleep", ""])
            .prop_map(|state| instances_document(&reservation(ids()[0].as_str(), state))),
    ];
    let body = prop_oneof![3 => good.clone(), 3 => like_bytes(good), 1 => any_bytes()];
    check("responses of EC2", 250, "tests/fuzz/seeds/ec2.txt", (any_status(), body), |(status, body)| {
        server.respond_with(response(status, "text/xml;charset=UTF-8", &body), None);
        let lookups = runtime.block_on(describe(&server));
        prop_assert_eq!(lookups.len(), ids().len());
        let text = String::from_utf8_lossy(&body);
        for lookup in lookups {
            let debug = format!("{lookup:?}");
            prop_assert!(!debug.contains("canary-aws"), "{debug}");
            match lookup {
                Lookup::NotRequested => return Err(TestCaseError::fail("no call was made")),
                // A success, or the one code that names unknown instances: every other response is a failed call.
                Lookup::Absent => {
                    prop_assert!((200..300).contains(&status) || text.contains("InvalidInstanceID"), "{status} {text}")
                }
                Lookup::Found(_) => prop_assert!((200..300).contains(&status), "{status} {text}"),
                Lookup::Unknown(failure) => {
                    prop_assert!(failure.message.len() < 8_000, "{} bytes", failure.message.len())
                }
            }
        }
        Ok(())
    });
}

#[test]
fn truncated_response_is_a_failed_call() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = CannedServer::start(&runtime);
    let reservations: String = ids().iter().map(|id| reservation(id.as_str(), "running")).collect();
    let body = instances_document(&reservations);
    server.respond_with(response(200, "text/xml;charset=UTF-8", &body), None);
    let complete = runtime.block_on(describe(&server));
    assert!(complete.iter().all(|lookup| lookup.found().is_some()), "{complete:?}");
    check("truncated responses of EC2", 250, "tests/fuzz/seeds/ec2_truncated.txt", any::<Index>(), |cut| {
        let cut = cut.index(body.len());
        server.respond_with(response(200, "text/xml;charset=UTF-8", &body[..cut]), None);
        let lookups = runtime.block_on(describe(&server));
        for lookup in &lookups {
            let kind = lookup.failure().map(|failure| failure.kind);
            prop_assert_eq!(kind, Some(FailureKind::Unparsable), "cut at {}: {:?}", cut, lookup);
        }
        Ok(())
    });
}

#[test]
fn malformed_response_is_a_failed_call() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let server = CannedServer::start(&runtime);
    let reservations: String = ids().iter().map(|id| reservation(id.as_str(), "running")).collect();
    let body = instances_document(&reservations);
    let case = (any::<Index>(), select(vec!["\u{1}", "\u{ffff}", "<br>", "</br>", "&", "<"]));
    check("malformed responses of EC2", 250, "tests/fuzz/seeds/ec2_malformed.txt", case, |(place, inserted)| {
        let mut text = String::from_utf8_lossy(&body).into_owned();
        text.insert_str(place.index(text.len()), inserted);
        server.respond_with(response(200, "text/xml;charset=UTF-8", text.as_bytes()), None);
        // The instances behind the insertion are in the document, so none of them may count as absent.
        for lookup in runtime.block_on(describe(&server)) {
            prop_assert!(lookup != Lookup::Absent, "{text}: {lookup:?}");
        }
        Ok(())
    });
}
