//! Serves a fake etcd on the given address until Ctrl-C:
//!
//! ```sh
//! cargo run -p fake-cloud --example etcd -- 127.0.0.1:2379
//! etcdctl --endpoints 127.0.0.1:2379 put hello world
//! ```

use fake_cloud::etcd::{EtcdStore, serve};
use fake_cloud::{Clock, Pace};
use tokio::net::TcpListener;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let listener = TcpListener::bind(&address).await?;
    println!("etcd on {}, Ctrl-C stops it", listener.local_addr()?);
    let stop = async { drop(tokio::signal::ctrl_c().await) };
    serve(listener, EtcdStore::new(Clock::new(Pace::Real)), stop).await
}
