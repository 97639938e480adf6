//! Cluster, maintenance and authentication.

use etcd_client::{AlarmAction, AlarmType, Client, ConnectOptions};

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::session::{Session, patiently};

pub(crate) async fn a_cluster_of_one(mut s: Session) -> Session {
    let status = s.client.status().await.expect("an answer");
    s.note("header", &Ok(status.header().cloned()));
    s.line("version", status.version());
    s.line("term", &status.raft_term().to_string());
    s.line("learner", &status.is_learner().to_string());
    s.line("errors", &format!("{:?}", status.errors()));
    s.line("index", &(status.raft_index() > 0 && status.raft_applied_index() == status.raft_index()).to_string());
    let list = s.client.member_list().await.expect("an answer");
    s.note("header", &Ok(list.header().cloned()));
    let [member] = list.members() else { panic!("not one member") };
    s.line("name", member.name());
    s.line("leads", &(status.leader() == member.id()).to_string());
    s.line("urls", &format!("{} {}", member.peer_urls().len(), member.client_urls().len()));
    s.line(
        "is the one that answers",
        &list.header().is_some_and(|header| header.member_id() == member.id()).to_string(),
    );
    s.call("alarms", async |c| c.alarm(AlarmAction::Get, AlarmType::None, None).await).await;
    s.call("defragment", async |c| c.defragment().await).await;
    s
}

pub(crate) async fn nobody_needs_a_password(mut s: Session) -> Session {
    let list = s.client.member_list().await.expect("an answer");
    let endpoint = list.members()[0].client_urls()[0].clone();
    let options = ConnectOptions::new().with_user("root", "secret");
    let refused = Client::connect([endpoint], Some(options)).await.map(|_| ());
    s.note("with a password", &refused);
    s
}

pub(crate) async fn calls_that_are_not_there(mut s: Session) -> Session {
    let refused = s.client.kv_client().get_stream("a", None).await.map(|_| ());
    s.note("a stream of keys", &refused);
    s
}

pub(crate) async fn health_and_version_over_plain_http(mut s: Session) -> Session {
    let list = s.client.member_list().await.expect("an answer");
    let endpoint = list.members()[0].client_urls()[0].trim_start_matches("http://").to_owned();
    for path in ["/health", "/version", "/nothing"] {
        let mut stream = tokio::net::TcpStream::connect(&endpoint).await.expect("a connection");
        let request = format!("GET {path} HTTP/1.1\r\nHost: {endpoint}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.expect("it is sent");
        let mut answer = String::new();
        patiently(path, stream.read_to_string(&mut answer)).await.expect("an answer");
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
        let kind = head.lines().find(|line| line.to_ascii_lowercase().starts_with("content-type"));
        let kind = kind.map(|line| line.to_ascii_lowercase());
        s.line(path, &format!("{:?} {kind:?} {body:?}", head.lines().next()));
    }
    s
}
