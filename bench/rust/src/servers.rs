//! Starts a real etcd on a memory disk, and the fake cloud's etcd, each as its shipped program.

use std::fs::Permissions;
use std::io::{BufRead as _, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::Client;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

use crate::Error;

const MEMORY_DISK: &str = "/dev/shm";
const PATIENCE: Duration = Duration::from_secs(30);

/// An etcd process, killed on drop.
#[derive(Debug)]
pub struct Server {
    /// Real or fake etcd.
    pub kind: Kind,
    /// Address of its client port.
    pub endpoint: String,
    process: Child,
    /// Process IDs of its process group.
    processes: Vec<String>,
    _directory: Option<TempDir>,
}

/// Real or fake etcd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// etcd itself.
    Real,
    /// The fake cloud's etcd.
    Fake,
}

impl Server {
    /// Starts a real etcd with its data in memory, so that no disk slows it down.
    ///
    /// # Errors
    /// If the program is missing or does not respond in time.
    pub async fn real() -> Result<Self, Error> {
        let directory = tempfile::Builder::new()
            .prefix("lcm-bench-etcd-")
            // etcd refuses a data directory that others can read.
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(MEMORY_DISK)?;
        let [client, peer] = [free_port()?, free_port()?].map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = Command::new(real_program());
        command.arg("--data-dir").arg(directory.path());
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}"), "--log-level", "fatal"]);
        let process = in_own_group(command.stdout(Stdio::null())).map_err(|error| {
            format!(
                "etcd cannot be started: {error}; LCM_ETCD_BIN names the directory it is in (make setup installs it)"
            )
        })?;
        Self::up(Kind::Real, client.replace("http://", ""), process, Some(directory)).await
    }

    /// Starts the fake cloud with all its services.
    ///
    /// # Errors
    /// If the program is missing or does not respond in time.
    pub async fn fake() -> Result<Self, Error> {
        let program = std::env::var_os("LCM_FAKE_CLOUD").unwrap_or_else(|| "fake-cloud".into());
        let mut command = Command::new(&program);
        command.args(["--ephemeral", "--json"]).stdout(Stdio::piped());
        let mut process = in_own_group(&mut command).map_err(|error| {
            format!("{} cannot be started: {error}; LCM_FAKE_CLOUD names the program", program.display())
        })?;
        let announced = process.stdout.take().ok_or("the fake cloud has no stdout")?;
        let mut line = String::new();
        BufReader::new(announced).read_line(&mut line)?;
        let announced: serde_json::Value = serde_json::from_str(&line)?;
        let endpoint = announced["etcd_endpoint"].as_str().ok_or("no etcd_endpoint in the output of the fake cloud")?;
        Self::up(Kind::Fake, endpoint.to_owned(), process, None).await
    }

    async fn up(kind: Kind, endpoint: String, process: Child, directory: Option<TempDir>) -> Result<Self, Error> {
        let mut server = Self { kind, endpoint, process, processes: Vec::new(), _directory: directory };
        let deadline = Instant::now() + PATIENCE;
        while server.client().await.is_err() {
            if Instant::now() > deadline {
                return Err(
                    format!("the {kind:?} etcd at {} did not respond within {PATIENCE:?}", server.endpoint).into()
                );
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        server.processes = members_of_group(server.process.id())?;
        Ok(server)
    }

    /// Opens a client on a new connection.
    ///
    /// # Errors
    /// If the server does not respond.
    pub async fn client(&self) -> Result<Client, etcd_client::Error> {
        let mut client = Client::connect([&self.endpoint], None).await?;
        client.get("none", None).await?;
        Ok(client)
    }

    /// Processor time of the server so far in seconds.
    #[must_use]
    pub fn processor_time(&self) -> f64 {
        let of_thread = |thread: &Path| {
            let text = std::fs::read_to_string(thread.join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        };
        let threads = self.processes.iter().flat_map(|process| std::fs::read_dir(format!("/proc/{process}/task")));
        let nanoseconds: f64 = threads.flatten().flatten().filter_map(|thread| of_thread(&thread.path())).sum();
        nanoseconds / 1e9
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(group) = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw) {
            // Fails if the processes have ended already.
            let _ = kill_process_group(group, Signal::KILL);
        }
        drop(self.process.wait());
    }
}

/// The program may be a script that starts etcd: a process group reaches both.
fn in_own_group(command: &mut Command) -> std::io::Result<Child> {
    command.stdin(Stdio::null()).process_group(0).spawn()
}

fn real_program() -> PathBuf {
    std::env::var_os("LCM_ETCD_BIN").map_or_else(|| "etcd".into(), |programs| PathBuf::from(programs).join("etcd"))
}

fn members_of_group(group: u32) -> std::io::Result<Vec<String>> {
    let group = group.to_string();
    let processes = std::fs::read_dir("/proc")?.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    let is_member = |process: &String| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        // The process name may contain spaces; after it: state, parent, group.
        Some(stat.rsplit_once(')')?.1.split_whitespace().nth(2)? == group)
    };
    Ok(processes.filter(|process| is_member(process) == Some(true)).collect())
}

fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
