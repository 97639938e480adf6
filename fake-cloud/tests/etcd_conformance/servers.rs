//! Starts the servers that are compared.

use std::net::TcpListener as StdListener;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use etcd_client::Client;
use fake_cloud::etcd::{EtcdStore, serve};
use fake_cloud::{Clock, Pace};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// The time limit of a single step of a test.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// The path of a program of real etcd, from the directory in `LCM_ETCD_BIN`.
pub(crate) fn program(name: &str) -> PathBuf {
    let directory = std::env::var_os("LCM_ETCD_BIN").expect(
        "LCM_ETCD_BIN is not set: it names the directory with the programs `etcd` and `etcdctl`. \
         `make setup` installs them and `make test` sets it",
    );
    let program = PathBuf::from(directory).join(name);
    assert!(program.exists(), "{} does not exist: run `make setup`", program.display());
    program
}

/// A child process that is killed on drop, with its process group: it may be a script that starts the actual program.
pub(crate) struct Running(Child);

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        std::os::unix::process::CommandExt::process_group(command, 0);
        Self(command.spawn().expect("the program starts"))
    }

    pub(crate) fn output(&mut self) -> ChildStdout {
        self.0.stdout.take().expect("piped stdout")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = format!("-{}", self.0.id());
        drop(Command::new("kill").args(["-KILL", "--", &group]).status());
        drop(self.0.wait());
    }
}

/// A real etcd with a data directory of its own.
pub(crate) struct RealEtcd {
    process: Option<Running>,
    directory: PathBuf,
    pub(crate) endpoint: String,
}

impl RealEtcd {
    pub(crate) async fn start() -> Self {
        Self::start_in(temporary_directory()).await
    }

    /// Starts a server on a data directory, which is removed on drop.
    pub(crate) async fn start_in(directory: PathBuf) -> Self {
        let [client, peer] = [free_port(), free_port()].map(|port| format!("http://127.0.0.1:{port}"));
        let mut command = Command::new(program("etcd"));
        command.arg("--data-dir").arg(&directory);
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--initial-cluster", &format!("default={peer}"), "--log-level", "error"]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        let process = Some(Running::start(&mut command));
        let endpoint = client.trim_start_matches("http://").to_owned();
        let etcd = Self { process, directory, endpoint };
        let deadline = Instant::now() + TIMEOUT;
        while !is_healthy(&etcd.endpoint).await {
            assert!(Instant::now() < deadline, "real etcd did not start");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        etcd
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.endpoint).await
    }
}

impl Drop for RealEtcd {
    fn drop(&mut self) {
        drop(self.process.take());
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

/// A fake etcd on a free port.
pub(crate) struct FakeEtcd {
    pub(crate) store: EtcdStore,
    pub(crate) endpoint: String,
    stop: Option<oneshot::Sender<()>>,
    server: JoinHandle<std::io::Result<()>>,
}

impl FakeEtcd {
    pub(crate) async fn start() -> Self {
        Self::with_clock(Clock::new(Pace::Real)).await
    }

    pub(crate) async fn with_clock(clock: Clock) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let endpoint = listener.local_addr().expect("an address").to_string();
        let store = EtcdStore::new(clock);
        let (stop, stopped) = oneshot::channel::<()>();
        let server = tokio::spawn(serve(listener, store.clone(), async move { drop(stopped.await) }));
        assert!(is_healthy(&endpoint).await, "the fake etcd did not start");
        Self { store, endpoint, stop: Some(stop), server }
    }

    pub(crate) async fn client(&self) -> Client {
        connect(&self.endpoint).await
    }

    /// Stops the server and waits until it has returned.
    pub(crate) async fn stop(mut self) {
        drop(self.stop.take());
        tokio::time::timeout(TIMEOUT, self.server)
            .await
            .expect("the server stops")
            .expect("no panic")
            .expect("no error");
    }
}

pub(crate) async fn connect(endpoint: &str) -> Client {
    Client::connect([endpoint], None).await.expect("a client")
}

async fn is_healthy(endpoint: &str) -> bool {
    let mut client = connect(endpoint).await;
    matches!(tokio::time::timeout(TIMEOUT, client.get("health", None)).await, Ok(Ok(_)))
}

/// The path of a directory that does not exist yet.
pub(crate) fn temporary_directory() -> PathBuf {
    std::env::temp_dir().join(format!("lcm-etcd-{}-{:x}", std::process::id(), unique()))
}

fn free_port() -> u16 {
    StdListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).expect("a free port").port()
}

fn unique() -> u128 {
    std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_nanos())
}
