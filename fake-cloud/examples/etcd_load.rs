//! How fast is an etcd, fake or real?
//!
//! ```sh
//! cargo run --release -p fake-cloud --example etcd -- 127.0.0.1:2379 &
//! cargo run --release -p fake-cloud --example etcd_load -- 127.0.0.1:2379 3
//! ```
//!
//! Calls it for so many seconds in each of several ways, and prints calls per second and latencies.

use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, Error, GetOptions, Txn, TxnOp, WatchOptions, WatchStream};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let mut arguments = std::env::args().skip(1);
    let endpoint = arguments.next().unwrap_or_else(|| "127.0.0.1:2379".to_owned());
    let seconds = arguments.next().and_then(|seconds| seconds.parse().ok()).unwrap_or(2.0);
    let load = Load { endpoint, duration: Duration::from_secs_f64(seconds) };
    println!("{:<28} {:>9} {:>9} {:>9}", "", "calls/s", "p50 ms", "p99 ms");
    load.call("put, 1 client", Call::Put, 1).await?;
    load.call("put, 8 clients", Call::Put, 8).await?;
    load.call("range 1 key, 1 client", Call::Get, 1).await?;
    load.call("range 1 key, 8 clients", Call::Get, 8).await?;
    load.call("range 100 keys, 8 clients", Call::List, 8).await?;
    load.call("txn create, 8 clients", Call::Create, 8).await?;
    load.watch("put to event, 1 watcher", 1).await?;
    load.watch("put to event, 32 watchers", 32).await?;
    load.watch("put to event, 1000 watchers", 1000).await?;
    let _crowd = load.crowd(1000).await?;
    load.call("put, 8 clients, 1000 watch", Call::Put, 8).await
}

struct Load {
    endpoint: String,
    duration: Duration,
}

#[derive(Clone, Copy)]
enum Call {
    Put,
    Get,
    List,
    Create,
}

impl Call {
    async fn make(self, client: &mut Client, worker: usize, turn: usize) -> Result<(), Error> {
        let key = format!("/load/{worker}/{:03}", turn % 100);
        match self {
            Self::Put => client.put(key, vec![b'x'; 256], None).await.map(drop),
            Self::Get => client.get(key, None).await.map(drop),
            Self::List => client.get(format!("/load/{worker}/"), Some(GetOptions::new().with_prefix())).await.map(drop),
            Self::Create => {
                let key = format!("/made/{worker}/{turn}");
                let absent = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
                client.txn(Txn::new().when([absent]).and_then([TxnOp::put(key, "x", None)])).await.map(drop)
            }
        }
    }
}

impl Load {
    async fn client(&self) -> Result<Client, Error> {
        Client::connect([&self.endpoint], None).await
    }

    /// Calls as fast as so many clients can.
    async fn call(&self, name: &str, call: Call, clients: usize) -> Result<(), Error> {
        let mut workers = JoinSet::new();
        let until = Instant::now() + self.duration;
        for worker in 0..clients {
            let mut client = self.client().await?;
            workers.spawn(async move {
                let mut latencies = Vec::new();
                while Instant::now() < until {
                    let begin = Instant::now();
                    call.make(&mut client, worker, latencies.len()).await?;
                    latencies.push(begin.elapsed());
                }
                Ok::<_, Error>(latencies)
            });
        }
        let mut latencies = Vec::new();
        for worker in workers.join_all().await {
            latencies.extend(worker?);
        }
        self.report(name, latencies);
        Ok(())
    }

    /// Puts, and waits each time until the last of so many watchers was told.
    async fn watch(&self, name: &str, watchers: usize) -> Result<(), Error> {
        let mut client = self.client().await?;
        let mut streams = Vec::new();
        for _ in 0..watchers {
            let mut stream = self.client().await?.watch("/seen", None).await?;
            stream.message().await?;
            streams.push(stream);
        }
        let until = Instant::now() + self.duration;
        let mut latencies = Vec::new();
        while Instant::now() < until {
            let begin = Instant::now();
            client.put("/seen", "x", None).await?;
            for stream in &mut streams {
                stream.message().await?;
            }
            latencies.push(begin.elapsed());
        }
        self.report(name, latencies);
        Ok(())
    }

    /// So many watchers that look elsewhere, on one connection.
    async fn crowd(&self, watchers: usize) -> Result<Vec<WatchStream>, Error> {
        let mut client = self.client().await?;
        let mut streams = Vec::new();
        for number in 0..watchers {
            let prefix = format!("/elsewhere/{number}/");
            let mut stream = client.watch(prefix, Some(WatchOptions::new().with_prefix())).await?;
            stream.message().await?;
            streams.push(stream);
        }
        Ok(streams)
    }

    fn report(&self, name: &str, mut latencies: Vec<Duration>) {
        latencies.sort();
        let at = |percent: usize| latencies.get(latencies.len() * percent / 100).map_or(0.0, |l| l.as_secs_f64() * 1e3);
        let rate = latencies.len() as f64 / self.duration.as_secs_f64();
        println!("{name:<28} {rate:>9.0} {:>9.2} {:>9.2}", at(50), at(99));
    }
}
