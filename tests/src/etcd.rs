//! A real etcd server, and a client that writes its keys.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{Client, CompactionOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

/// Limit of every wait in the tests.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A real etcd with its own ports and data directory. Dropping it ends the process and deletes the data.
#[derive(Debug)]
pub struct RealEtcd {
    process: Option<Child>,
    directory: PathBuf,
    client_port: u16,
    peer_port: u16,
    name: String,
    /// Value of `--initial-cluster`: all members, this one included.
    cluster: String,
    certificates: Option<Certificates>,
}

/// PEM files of an etcd with mutual TLS.
#[derive(Debug, Clone)]
pub struct Certificates {
    /// Certificate authority of the server and the client.
    pub authority: PathBuf,
    /// Certificate and key of the server.
    pub server: (PathBuf, PathBuf),
    /// Certificate and key of the client.
    pub client: (PathBuf, PathBuf),
}

impl RealEtcd {
    /// Starts a server and waits until it is ready.
    pub async fn start() -> Self {
        let mut etcd = Self::reserve();
        etcd.restart().await;
        etcd
    }

    /// Reserves the ports of a server without starting it.
    pub fn reserve() -> Self {
        Self::with_name("single")
    }

    /// Reserves the ports of servers that will form one cluster.
    pub(crate) fn new_members(members: usize) -> Vec<Self> {
        let mut members: Vec<_> = (1..=members).map(|number| Self::with_name(&format!("member-{number}"))).collect();
        let cluster = members.iter().map(|member| member.cluster.clone()).collect::<Vec<_>>().join(",");
        for member in &mut members {
            member.cluster.clone_from(&cluster);
        }
        members
    }

    fn with_name(name: &str) -> Self {
        let unique = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_nanos());
        let directory = std::env::temp_dir().join(format!("lcm-etcd-{name}-{}-{unique:x}", std::process::id()));
        let (client_port, peer_port) = (free_port(), free_port());
        let cluster = format!("{name}=http://127.0.0.1:{peer_port}");
        Self { process: None, directory, client_port, peer_port, name: name.to_owned(), cluster, certificates: None }
    }

    /// Starts a server that requires client certificates, without waiting until it is ready.
    pub fn start_with_tls() -> (Self, Certificates) {
        let mut etcd = Self::reserve();
        let certificates = Certificates::issue(&etcd.directory.join("certificates"));
        etcd.certificates = Some(certificates.clone());
        etcd.spawn();
        (etcd, certificates)
    }

    /// Address of the client port, without a scheme.
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    /// Starts the server on its existing data, if any, and waits until it is ready.
    ///
    /// # Panics
    /// If etcd is not installed or does not become ready.
    pub async fn restart(&mut self) {
        self.spawn();
        self.wait_until_ready().await;
    }

    /// Waits until the server responds. A member of a cluster responds only with a quorum.
    ///
    /// # Panics
    /// If it does not within [`PATIENCE`].
    pub(crate) async fn wait_until_ready(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !is_ready(&self.endpoint()).await {
            assert!(Instant::now() < deadline, "the real etcd did not become ready");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts the server on its existing data, if any.
    ///
    /// # Panics
    /// If etcd is not installed.
    pub(crate) fn spawn(&mut self) {
        let programs = std::env::var_os("LCM_ETCD_BIN").expect(
            "LCM_ETCD_BIN is not set: it names the directory with the program `etcd`. `make setup` installs it and \
             `make test` sets it",
        );
        let scheme = if self.certificates.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", self.client_port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = Command::new(PathBuf::from(programs).join("etcd"));
        command.arg("--data-dir").arg(self.directory.join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--name", &self.name, "--initial-cluster", &self.cluster, "--log-level", "fatal"]);
        if let Some(certificates) = &self.certificates {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&certificates.authority);
            command.arg("--cert-file").arg(&certificates.server.0).arg("--key-file").arg(&certificates.server.1);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        // The program may be a script that starts etcd. Signals to its process group reach both.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        self.process = Some(command.spawn().expect("etcd starts"));
    }

    /// Pauses the server: connections stay open, but no call completes. All of its threads are stopped on return.
    ///
    /// # Panics
    /// If a thread still runs after [`PATIENCE`].
    pub fn pause(&self) {
        self.signal("-STOP");
        // The signal is delivered asynchronously: on a busy machine a thread may serve another call before it stops.
        let deadline = Instant::now() + PATIENCE;
        while self.process.as_ref().is_some_and(|process| !is_stopped(process.id())) {
            assert!(Instant::now() < deadline, "the real etcd did not stop within {PATIENCE:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Resumes a paused server.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Kills the server and keeps its data.
    pub fn kill(&mut self) {
        self.signal("-KILL");
        if let Some(mut process) = self.process.take() {
            drop(process.wait());
        }
    }

    fn signal(&self, signal: &str) {
        if let Some(process) = &self.process {
            let group = format!("-{}", process.id());
            drop(Command::new("kill").args([signal, "--", &group]).status());
        }
    }
}

impl Drop for RealEtcd {
    fn drop(&mut self) {
        self.kill();
        drop(std::fs::remove_dir_all(&self.directory));
    }
}

impl Certificates {
    /// Issues certificates for `127.0.0.1` and writes them to a directory, which is created.
    pub fn issue(directory: &Path) -> Self {
        std::fs::create_dir_all(directory).expect("a directory");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        let authority = directory.join("authority.pem");
        std::fs::write(&authority, issuer.pem()).expect("a file");
        let issue = |name: &str| {
            let mut params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("a name");
            params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
            params.use_authority_key_identifier_extension = true;
            let key = KeyPair::generate().expect("a key");
            let certificate = params.signed_by(&key, &issuer).expect("a certificate");
            let files = (directory.join(format!("{name}.pem")), directory.join(format!("{name}-key.pem")));
            std::fs::write(&files.0, certificate.pem()).expect("a file");
            std::fs::write(&files.1, key.serialize_pem()).expect("a file");
            files
        };
        Self { authority, server: issue("server"), client: issue("client") }
    }
}

/// Writes keys of a fake or real etcd.
#[derive(Clone)]
pub struct Keys(Client);

impl Keys {
    /// Connects to an etcd.
    ///
    /// # Panics
    /// If the connection fails.
    pub async fn connect(endpoint: &str) -> Self {
        Self(Client::connect([endpoint], None).await.expect("a client"))
    }

    /// Writes a key.
    ///
    /// # Panics
    /// If the call fails.
    pub async fn put(&self, key: &str, value: &str) {
        self.0.clone().put(key, value, None).await.expect("a put");
    }

    /// Deletes a key.
    ///
    /// # Panics
    /// If the call fails.
    pub async fn delete(&self, key: &str) {
        self.0.clone().delete(key, None).await.expect("a delete");
    }

    /// Compacts the history up to the current revision.
    ///
    /// # Panics
    /// If a call fails.
    pub async fn compact(&self) {
        let mut client = self.0.clone();
        let now = client.get("\0", None).await.expect("a response").header().expect("a header").revision();
        client.compact(now, Some(CompactionOptions::new().with_physical())).await.expect("a compaction");
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

async fn is_ready(endpoint: &str) -> bool {
    let Ok(mut client) = Client::connect([endpoint], None).await else { return false };
    matches!(tokio::time::timeout(Duration::from_secs(2), client.get("health", None)).await, Ok(Ok(_)))
}

/// Whether every thread of a process group is stopped or has exited. Always true on systems without `/proc`.
fn is_stopped(group: u32) -> bool {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let members = processes.filter(|process| stat_fields(&process.path()).is_some_and(|stat| stat.group == group));
    let mut threads = members.flat_map(|process| std::fs::read_dir(process.path().join("task")).into_iter().flatten());
    threads.all(|thread| {
        let stat = thread.ok().and_then(|thread| stat_fields(&thread.path()));
        stat.is_none_or(|stat| matches!(stat.state, 'T' | 't' | 'Z' | 'X'))
    })
}

/// Fields of `/proc/<pid>/stat`.
struct Stat {
    state: char,
    group: u32,
}

/// Reads the fields of a process or thread; `None` if it does not exist.
fn stat_fields(directory: &Path) -> Option<Stat> {
    let stat = std::fs::read_to_string(directory.join("stat")).ok()?;
    // The command name is in parentheses and may contain spaces: `pid (name) state parent group …`.
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ');
    Some(Stat { state: fields.next()?.chars().next()?, group: fields.nth(1)?.parse().ok()? })
}

/// A free port outside the ephemeral range, so that it is still free when the server is restarted.
fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 1000) as u16 * 12;
    let candidates = (0..12_000).map(|_| 20_000 + (first + TRIED.fetch_add(1, Ordering::Relaxed)) % 12_000);
    let mut free = candidates.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().expect("a free port")
}
