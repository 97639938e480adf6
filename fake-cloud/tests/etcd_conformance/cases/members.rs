//! Cluster, maintenance and authentication.

use etcd_client::{AlarmAction, AlarmType, Client, ConnectOptions};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::session::{Session, with_timeout};

pub(crate) async fn single_member_cluster(mut s: Session) -> Session {
    let status = s.client.status().await.expect("a response");
    s.record_result("header", &Ok(status.header().cloned()));
    s.record("version", status.version());
    s.record("term", &status.raft_term().to_string());
    s.record("learner", &status.is_learner().to_string());
    s.record("errors", &format!("{:?}", status.errors()));
    s.record("index", &(status.raft_index() > 0 && status.raft_applied_index() == status.raft_index()).to_string());
    let list = s.client.member_list().await.expect("a response");
    s.record_result("header", &Ok(list.header().cloned()));
    let [member] = list.members() else { panic!("not one member") };
    s.record("name", member.name());
    s.record("leads", &(status.leader() == member.id()).to_string());
    s.record("urls", &format!("{} {}", member.peer_urls().len(), member.client_urls().len()));
    s.record("sent the response", &list.header().is_some_and(|header| header.member_id() == member.id()).to_string());
    s.call("alarms", async |c| c.alarm(AlarmAction::Get, AlarmType::None, None).await).await;
    s.call("defragment", async |c| c.defragment().await).await;
    s
}

pub(crate) async fn authentication_is_disabled(mut s: Session) -> Session {
    let list = s.client.member_list().await.expect("a response");
    let endpoint = list.members()[0].client_urls()[0].clone();
    let options = ConnectOptions::new().with_user("root", "secret");
    let rejected = Client::connect([endpoint], Some(options)).await.map(|_| ());
    s.record_result("with a password", &rejected);
    s
}

pub(crate) async fn unimplemented_calls(mut s: Session) -> Session {
    let rejected = s.client.kv_client().get_stream("a", None).await.map(|_| ());
    s.record_result("a stream of keys", &rejected);
    s
}

pub(crate) async fn health_and_version_over_http(mut s: Session) -> Session {
    let list = s.client.member_list().await.expect("a response");
    let endpoint = list.members()[0].client_urls()[0].trim_start_matches("http://").to_owned();
    for path in ["/health", "/version", "/nothing"] {
        let mut stream = tokio::net::TcpStream::connect(&endpoint).await.expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("sent");
        let mut response = String::new();
        with_timeout(path, stream.read_to_string(&mut response)).await.expect("a response");
        let (head, body) = response.split_once("\r\n\r\n").expect("a head and a body");
        let kind = head.lines().find(|line| line.to_ascii_lowercase().starts_with("content-type"));
        let kind = kind.map(|line| line.to_ascii_lowercase());
        s.record(path, &format!("{:?} {kind:?} {body:?}", head.lines().next()));
    }
    s
}
