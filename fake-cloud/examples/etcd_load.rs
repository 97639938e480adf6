//! How fast is one etcd beside another?
//!
//! ```sh
//! cargo build --release -p fake-cloud --examples --bins
//! target/release/fake-cloud --etcd-port 2379 & fake=$!
//! etcd --data-dir /dev/shm/etcd --listen-client-urls http://127.0.0.1:3379 --advertise-client-urls http://127.0.0.1:3379 & real=$!
//! target/release/examples/etcd_load 127.0.0.1:2379@$fake 127.0.0.1:3379@$real
//! ```
//!
//! Calls each for `SECONDS` (1) in each of several ways, in turns, `ROUNDS` (5) times, so that what else the machine
//! does hits all alike. Prints for each the median round: calls per second and latencies; and, where a process is named
//! after an `@` (Linux only), what that process spends on a call. The last column is how many times as many calls per
//! second the first one answers. `ONLY=event` leaves out what has no such word in its name.

use std::time::{Duration, Instant};

use etcd_client::{Client, Compare, CompareOp, Error, GetOptions, Txn, TxnOp, WatchOptions, WatchStream};
use tokio::task::JoinSet;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let servers: Vec<_> = std::env::args().skip(1).map(|argument| Server::named(&argument)).collect();
    let setting = |name| std::env::var(name).ok().and_then(|text| text.parse::<f64>().ok());
    let load = Load {
        servers,
        duration: Duration::from_secs_f64(setting("SECONDS").unwrap_or(1.0)),
        rounds: setting("ROUNDS").map_or(5, |rounds| rounds as usize),
        only: std::env::var("ONLY").unwrap_or_default(),
    };
    println!("{:<28} {:>22} {:>9} {:>8} {:>8} {:>8} {:>7}", "", "", "calls/s", "p50 ms", "p99 ms", "CPU us", "times");
    for clients in [1, 8, 32] {
        load.compare(&format!("put, {clients} clients"), Kind::Calls(Call::Put, clients)).await?;
        load.compare(&format!("range 1 key, {clients} clients"), Kind::Calls(Call::Get, clients)).await?;
        load.compare(&format!("range 100 keys, {clients} clients"), Kind::Calls(Call::List, clients)).await?;
        load.compare(&format!("txn create, {clients} clients"), Kind::Calls(Call::Create, clients)).await?;
    }
    for watchers in [1, 8, 32, 1000] {
        load.compare(&format!("put to event, {watchers} watchers"), Kind::Watch(watchers)).await?;
    }
    load.compare("put, 8 clients, 1000 watch", Kind::Crowd(1000, 8)).await
}

struct Load {
    servers: Vec<Server>,
    duration: Duration,
    rounds: usize,
    only: String,
}

struct Server {
    endpoint: String,
    process: Option<String>,
}

#[derive(Clone, Copy)]
enum Kind {
    /// So many clients call as fast as they can.
    Calls(Call, usize),
    /// Puts, each seen by so many watchers.
    Watch(usize),
    /// So many watchers look elsewhere while so many clients put.
    Crowd(usize, usize),
}

#[derive(Clone, Copy)]
enum Call {
    Put,
    Get,
    List,
    Create,
}

/// One round against one server.
#[derive(Clone)]
struct Round {
    rate: f64,
    median: f64,
    worst_percent: f64,
    processor_time: Option<f64>,
}

impl Load {
    async fn compare(&self, name: &str, kind: Kind) -> Result<(), Error> {
        if !name.contains(&self.only) {
            return Ok(());
        }
        let mut rounds = vec![Vec::new(); self.servers.len()];
        for number in 0..self.rounds {
            for (server, rounds) in self.servers.iter().zip(&mut rounds) {
                rounds.push(server.round(kind, self.duration, number).await?);
            }
        }
        let medians: Vec<Round> = rounds.iter().map(|rounds| median(rounds)).collect();
        for (place, (server, round)) in self.servers.iter().zip(&medians).enumerate() {
            let times = medians.get(1).filter(|_| place == 0).map(|other| format!("{:.2}", round.rate / other.rate));
            println!(
                "{:<28} {:>22} {:>9.0} {:>8.3} {:>8.3} {:>8} {:>7}",
                if place == 0 { name } else { "" },
                server.endpoint,
                round.rate,
                round.median,
                round.worst_percent,
                round.processor_time.map(|time| format!("{time:.1}")).unwrap_or_default(),
                times.unwrap_or_default(),
            );
        }
        Ok(())
    }
}

impl Server {
    fn named(argument: &str) -> Self {
        let (endpoint, process) = argument.split_once('@').map_or((argument, None), |(e, p)| (e, Some(p.to_owned())));
        Self { endpoint: endpoint.to_owned(), process }
    }

    async fn client(&self) -> Result<Client, Error> {
        let mut client = Client::connect([&self.endpoint], None).await?;
        // The first call connects.
        client.get("none", None).await?;
        Ok(client)
    }

    async fn round(&self, kind: Kind, duration: Duration, number: usize) -> Result<Round, Error> {
        match kind {
            Kind::Calls(call, clients) => self.call(call, clients, duration, number).await,
            Kind::Watch(watchers) => self.watch(watchers, duration).await,
            Kind::Crowd(watchers, clients) => {
                let _crowd = self.crowd(watchers).await?;
                self.call(Call::Put, clients, duration, number).await
            }
        }
    }

    async fn call(&self, call: Call, clients: usize, duration: Duration, round: usize) -> Result<Round, Error> {
        let mut connected = Vec::new();
        for _ in 0..clients {
            connected.push(self.client().await?);
        }
        let mut workers = JoinSet::new();
        let (spent, begin) = (self.processor_time(), Instant::now());
        let until = begin + duration;
        for (worker, mut client) in connected.into_iter().enumerate() {
            workers.spawn(async move {
                let mut latencies = Vec::new();
                while Instant::now() < until {
                    let begin = Instant::now();
                    call.make(&mut client, worker, round * 1_000_000 + latencies.len()).await?;
                    latencies.push(begin.elapsed());
                }
                Ok::<_, Error>(latencies)
            });
        }
        let mut latencies = Vec::new();
        for worker in workers.join_all().await {
            latencies.extend(worker?);
        }
        Ok(self.summary(latencies, begin, spent))
    }

    /// Puts, and waits each time until the last of so many watchers was told.
    async fn watch(&self, watchers: usize, duration: Duration) -> Result<Round, Error> {
        let mut client = self.client().await?;
        let mut streams = Vec::new();
        for _ in 0..watchers {
            let mut stream = self.client().await?.watch("/seen", None).await?;
            stream.message().await?;
            streams.push(stream);
        }
        let (spent, begin) = (self.processor_time(), Instant::now());
        let mut latencies = Vec::new();
        while begin.elapsed() < duration {
            let sent = Instant::now();
            client.put("/seen", "x", None).await?;
            for stream in &mut streams {
                stream.message().await?;
            }
            latencies.push(sent.elapsed());
        }
        Ok(self.summary(latencies, begin, spent))
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

    fn summary(&self, mut latencies: Vec<Duration>, begin: Instant, spent: Option<f64>) -> Round {
        let passed = begin.elapsed();
        let spent = self.processor_time().zip(spent).map(|(after, before)| after - before);
        latencies.sort();
        let at = |percent: usize| latencies.get(latencies.len() * percent / 100).map_or(0.0, |l| l.as_secs_f64() * 1e3);
        let calls = latencies.len() as f64;
        Round {
            rate: calls / passed.as_secs_f64(),
            median: at(50),
            worst_percent: at(99),
            processor_time: spent.map(|spent| spent / calls * 1e6),
        }
    }

    /// The seconds its process has computed so far.
    fn processor_time(&self) -> Option<f64> {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process.as_ref()?)).ok()?;
        let of_thread = |path: std::path::PathBuf| {
            let text = std::fs::read_to_string(path.join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        };
        Some(threads.flatten().filter_map(|thread| of_thread(thread.path())).sum::<f64>() / 1e9)
    }
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

/// The middle of each number by itself.
fn median(rounds: &[Round]) -> Round {
    let middle = |of: fn(&Round) -> f64| {
        let mut numbers: Vec<f64> = rounds.iter().map(of).collect();
        numbers.sort_by(f64::total_cmp);
        numbers.get(numbers.len() / 2).copied().unwrap_or(0.0)
    };
    Round {
        rate: middle(|round| round.rate),
        median: middle(|round| round.median),
        worst_percent: middle(|round| round.worst_percent),
        processor_time: rounds
            .iter()
            .all(|round| round.processor_time.is_some())
            .then(|| middle(|round| round.processor_time.unwrap_or(0.0))),
    }
}
