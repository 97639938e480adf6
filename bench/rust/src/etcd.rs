//! Throughput, latency and processor time of the fake etcd and of a real one.
//!
//! The same clients, each with its own connection, call both servers in alternating rounds, so that other load on the
//! machine affects both. The real etcd keeps its data on a memory disk.
//!
//! All clients share one thread, which leaves the second core of a small machine to the server. With many clients that
//! thread limits a fast server: the rates include the clients, the processor time is the server's alone.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use etcd_client::{Client, Compare, CompareOp, Error as ClientError, GetOptions, Txn, TxnOp};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::measure::Latency;
use crate::servers::{Kind, Server};
use crate::{Error, report};

/// Length of a measurement.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// Duration of one round.
    pub duration: Duration,
    /// Rounds per server and kind of call.
    pub rounds: usize,
}

/// Kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Call {
    /// A put of 256 bytes.
    Put,
    /// A range of one key.
    Get,
    /// A range of many keys.
    List,
    /// A transaction that creates a key.
    Create,
    /// A put that ends when the last watcher has received its event.
    Event,
}

const CLIENTS: [usize; 3] = [1, 8, 32];
const KEYS_PER_CLIENT: usize = 100;

/// Rounds of one kind of call to one server.
#[derive(Debug, Serialize)]
struct Measured {
    call: Call,
    clients: usize,
    server: Kind,
    /// Calls per second of each round.
    rate: Vec<f64>,
    /// 99th percentile of the latency in milliseconds of each round.
    p99: Vec<f64>,
    /// Processor time of the server per call in microseconds of each round.
    processor_us: Vec<f64>,
}

struct Round {
    rate: f64,
    p99: f64,
    processor_us: f64,
}

/// Measures the given kinds of calls, or all of them if the slice is empty.
///
/// # Errors
/// If a server cannot be started or called.
pub async fn run(calls: &[Call], effort: Effort) -> Result<(), Error> {
    let servers = [Server::fake().await?, Server::real().await?];
    for &call in if calls.is_empty() { Call::value_variants() } else { calls } {
        for clients in CLIENTS {
            eprintln!("      {call:?}, {clients} clients");
            let mut rounds = servers.each_ref().map(|_| Vec::new());
            // The first round fills the store and is not counted.
            for number in 0..=effort.rounds {
                for (server, rounds) in servers.iter().zip(&mut rounds) {
                    let round = round(server, call, clients, effort.duration, number).await?;
                    if number > 0 {
                        rounds.push(round);
                    }
                }
            }
            for (server, rounds) in servers.iter().zip(&rounds) {
                report(&Measured::new(server.kind, call, clients, rounds))?;
            }
        }
    }
    Ok(())
}

async fn round(server: &Server, call: Call, clients: usize, duration: Duration, number: usize) -> Result<Round, Error> {
    match call {
        Call::Event => watch(server, clients, duration).await,
        Call::Put | Call::Get | Call::List | Call::Create => calls(server, call, clients, duration, number).await,
    }
}

/// Each client calls in a closed loop.
async fn calls(server: &Server, call: Call, clients: usize, duration: Duration, number: usize) -> Result<Round, Error> {
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(server.client().await?);
    }
    let mut callers = JoinSet::new();
    let (spent, began) = (server.processor_time(), Instant::now());
    for (caller, mut client) in connected.into_iter().enumerate() {
        callers.spawn(async move {
            let mut latencies = Vec::new();
            while began.elapsed() < duration {
                let sent = Instant::now();
                call.make(&mut client, caller, number * 1_000_000 + latencies.len()).await?;
                latencies.push(sent.elapsed());
            }
            Ok::<_, ClientError>(latencies)
        });
    }
    let mut latencies = Vec::new();
    for caller in callers.join_all().await {
        latencies.extend(caller?);
    }
    Ok(summary(server, latencies, began, spent))
}

/// Puts, and waits each time for the event on the last watcher.
async fn watch(server: &Server, watchers: usize, duration: Duration) -> Result<Round, Error> {
    let mut client = server.client().await?;
    let mut streams = Vec::new();
    for _ in 0..watchers {
        let mut stream = server.client().await?.watch("/seen", None).await?;
        stream.message().await?;
        streams.push(stream);
    }
    let (spent, began) = (server.processor_time(), Instant::now());
    let mut latencies = Vec::new();
    while began.elapsed() < duration {
        let sent = Instant::now();
        client.put("/seen", "x", None).await?;
        for stream in &mut streams {
            stream.message().await?;
        }
        latencies.push(sent.elapsed());
    }
    Ok(summary(server, latencies, began, spent))
}

fn summary(server: &Server, latencies: Vec<Duration>, began: Instant, spent: f64) -> Round {
    let (passed, spent) = (began.elapsed(), server.processor_time() - spent);
    let calls = latencies.len() as f64;
    Round {
        rate: calls / passed.as_secs_f64(),
        p99: Latency::from_durations(latencies).p99,
        processor_us: spent / calls * 1e6,
    }
}

impl Measured {
    fn new(server: Kind, call: Call, clients: usize, rounds: &[Round]) -> Self {
        let each = |field: fn(&Round) -> f64| rounds.iter().map(field).collect();
        Self {
            call,
            clients,
            server,
            rate: each(|round| round.rate),
            p99: each(|round| round.p99),
            processor_us: each(|round| round.processor_us),
        }
    }
}

impl Call {
    async fn make(self, client: &mut Client, caller: usize, turn: usize) -> Result<(), ClientError> {
        let key = || format!("/load/{caller}/{:03}", turn % KEYS_PER_CLIENT);
        match self {
            Self::Put | Self::Event => client.put(key(), vec![b'x'; 256], None).await.map(drop),
            Self::Get => client.get(key(), None).await.map(drop),
            Self::List => client.get(format!("/load/{caller}/"), Some(GetOptions::new().with_prefix())).await.map(drop),
            Self::Create => {
                let key = format!("/made/{caller}/{turn}");
                let absent = Compare::create_revision(key.as_str(), CompareOp::Equal, 0);
                client.txn(Txn::new().when([absent]).and_then([TxnOp::put(key, "x", None)])).await.map(drop)
            }
        }
    }
}
