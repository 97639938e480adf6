//! What EC2 answers, through the real client over a socket.

use lcm_sdk::ports::Compute as _;
use lcm_sdk::providers::aws::{Account, Ec2, Tuning};
use lcm_sdk::telemetry::Telemetry;
use lcm_sdk::{InstanceId, Lookup, Secret};
use proptest::prelude::*;
use proptest::sample::select;

use crate::cases::{any_bytes, any_text, check, like_bytes};
use crate::parrot::{Parrot, any_status, response};

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

fn refusal(code: &str, message: &str) -> Vec<u8> {
    let xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n";
    format!("{xml}<Response><Errors><Error><Code>{code}</Code><Message>{message}</Message></Error></Errors><RequestID>r</RequestID></Response>").into_bytes()
}

fn listing(id: &str, state: &str) -> Vec<u8> {
    format!(
        "<DescribeInstancesResponse xmlns=\"http://ec2.amazonaws.com/doc/2016-11-15/\"><requestId>r</requestId>\
         <reservationSet><item><reservationId>r-1</reservationId><instancesSet><item><instanceId>{id}</instanceId>\
         <instanceState><code>16</code><name>{state}</name></instanceState><launchTime>2026-02-06T08:00:00.000Z</launchTime>\
         <privateIpAddress>10.0.0.1</privateIpAddress></item></instancesSet></item></reservationSet>\
         </DescribeInstancesResponse>"
    )
    .into_bytes()
}

#[test]
fn whatever_ec2_answers_absent_is_only_what_it_said_in_its_own_words() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let parrot = Parrot::start(&runtime);
    let good = prop_oneof![
        (select(CODES), any_text()).prop_map(|(code, text)| refusal(code, &text)),
        select(vec!["running", "stopped", "asleep", ""]).prop_map(|state| listing("i-0123456789abcdef0", state)),
    ];
    let body = prop_oneof![3 => good.clone(), 3 => like_bytes(good), 1 => any_bytes()];
    check("answers of EC2", 250, "tests/fuzz/seeds/ec2.txt", (any_status(), body), |(status, body)| {
        parrot.learn(response(status, "text/xml;charset=UTF-8", &body), None);
        // A new account for each case: one that failed often is left alone for a while.
        let tuning = Tuning { attempts: 1, speed: 1e6, ..Tuning::default() };
        let url = format!("http://{}", parrot.address);
        let account = Account::at(&url, "AKIA", &Secret::from("canary-aws"), tuning, &Telemetry::default());
        let ids = [InstanceId::from("i-0123456789abcdef0"), InstanceId::from("i-0123456789abcdef1")];
        let answers = runtime.block_on(Ec2::new(account).instances("us-east-1", &ids));
        prop_assert_eq!(answers.len(), ids.len());
        let said = String::from_utf8_lossy(&body);
        for answer in answers {
            let told = format!("{answer:?}");
            prop_assert!(!told.contains("canary-aws"), "{told}");
            match answer {
                Lookup::NotRequested => return Err(TestCaseError::fail("it was asked")),
                // A success, or the one code that says so: everything else is "could not ask".
                Lookup::Absent => {
                    prop_assert!((200..300).contains(&status) || said.contains("InvalidInstanceID"), "{status} {said}")
                }
                Lookup::Found(_) => prop_assert!((200..300).contains(&status), "{status} {said}"),
                Lookup::Unknown(failure) => {
                    prop_assert!(failure.message.len() < 8_000, "{} bytes", failure.message.len())
                }
            }
        }
        Ok(())
    });
}
