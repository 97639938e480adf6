//! How fast is the fake etcd beside a real one?
//!
//! Both are called by the same clients, each with a connection of its own, in each of several ways, in turns, so that
//! what else the machine does hits both alike. The best round counts, for each number by itself: calls per second and
//! latencies, and what the server spends on a call. A neighbour on the machine can make a round slower, never faster. The
//! real one keeps its data on a memory disk.
//!
//! All clients share one thread, so that a server has the other core of even a small machine. With many clients that
//! thread is what limits a fast server: the rates are those of the whole, and the processor time is the server's alone.

use std::time::{Duration, Instant};

use clap::ValueEnum;
use etcd_client::{Client, Compare, CompareOp, Error as ClientError, GetOptions, Txn, TxnOp};
use serde::Serialize;
use tokio::task::JoinSet;

use crate::measure::Latency;
use crate::servers::{Kind, Server};
use crate::{Error, tell};

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Effort {
    /// How long a round calls.
    pub duration: Duration,
    /// How many rounds there are.
    pub rounds: usize,
}

/// A way to use an etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Call {
    /// A put.
    Put,
    /// A range of one key.
    Get,
    /// A range of many keys.
    List,
    /// A transaction that creates a key.
    Create,
    /// A put, over when the last watcher has heard of it.
    Event,
}

const CLIENTS: [usize; 3] = [1, 8, 32];
const KEYS_OF_A_CLIENT: usize = 100;

/// One server called in one way.
#[derive(Debug, Serialize)]
struct Measured {
    call: Call,
    clients: usize,
    server: Kind,
    /// Calls per second.
    rate: f64,
    /// How long a call took.
    latency: Latency,
    /// What the server spent on a call, in microseconds.
    processor_us: f64,
}

struct Round {
    rate: f64,
    latency: Latency,
    processor_us: f64,
}

/// Measures both, called in these ways, or in all of them if none is named.
///
/// # Errors
/// If one of them cannot be started or called.
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
                tell(&best(server.kind, call, clients, rounds))?;
            }
        }
    }
    Ok(())
}

async fn round(server: &Server, call: Call, clients: usize, lasts: Duration, number: usize) -> Result<Round, Error> {
    match call {
        Call::Event => watch(server, clients, lasts).await,
        Call::Put | Call::Get | Call::List | Call::Create => calls(server, call, clients, lasts, number).await,
    }
}

/// Every client calls as fast as it can.
async fn calls(server: &Server, call: Call, clients: usize, lasts: Duration, number: usize) -> Result<Round, Error> {
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(server.client().await?);
    }
    let mut callers = JoinSet::new();
    let (spent, began) = (server.processor_time(), Instant::now());
    for (caller, mut client) in connected.into_iter().enumerate() {
        callers.spawn(async move {
            let mut latencies = Vec::new();
            while began.elapsed() < lasts {
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

/// Puts, and waits each time until the last watcher was told.
async fn watch(server: &Server, watchers: usize, lasts: Duration) -> Result<Round, Error> {
    let mut client = server.client().await?;
    let mut streams = Vec::new();
    for _ in 0..watchers {
        let mut stream = server.client().await?.watch("/seen", None).await?;
        stream.message().await?;
        streams.push(stream);
    }
    let (spent, began) = (server.processor_time(), Instant::now());
    let mut latencies = Vec::new();
    while began.elapsed() < lasts {
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
    Round { rate: calls / passed.as_secs_f64(), latency: Latency::of(latencies), processor_us: spent / calls * 1e6 }
}

/// The best of each number by itself.
fn best(server: Kind, call: Call, clients: usize, rounds: &[Round]) -> Measured {
    let least = |of: fn(&Round) -> f64| rounds.iter().map(of).fold(f64::INFINITY, f64::min);
    Measured {
        call,
        clients,
        server,
        rate: rounds.iter().map(|round| round.rate).fold(0.0, f64::max),
        latency: Latency { p50: least(|round| round.latency.p50), p99: least(|round| round.latency.p99) },
        processor_us: least(|round| round.processor_us),
    }
}

impl Call {
    async fn make(self, client: &mut Client, caller: usize, turn: usize) -> Result<(), ClientError> {
        let key = || format!("/load/{caller}/{:03}", turn % KEYS_OF_A_CLIENT);
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
