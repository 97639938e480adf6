//! A real etcd, and hands to write its keys with.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use etcd_client::{Client, CompactionOptions};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, ExtendedKeyUsagePurpose, IsCa, KeyPair};

/// How long anything may take before a test gives up on it.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A real etcd with ports and a directory of its own, both gone when it is dropped.
#[derive(Debug)]
pub struct RealEtcd {
    process: Option<Child>,
    directory: PathBuf,
    client_port: u16,
    peer_port: u16,
    name: String,
    /// All members it forms a cluster with, itself included, as its command line names them.
    cluster: String,
    papers: Option<Papers>,
}

/// What a protected etcd and its clients show each other, as PEM files.
#[derive(Debug, Clone)]
pub struct Papers {
    /// The authority of both.
    pub authority: PathBuf,
    /// What the server shows.
    pub server: (PathBuf, PathBuf),
    /// What a client shows.
    pub client: (PathBuf, PathBuf),
}

impl RealEtcd {
    /// One that runs.
    pub async fn start() -> Self {
        let mut etcd = Self::reserved();
        etcd.begin().await;
        etcd
    }

    /// One that does not run yet.
    pub fn reserved() -> Self {
        Self::named("alone")
    }

    /// As many that do not run yet and will form one cluster.
    pub(crate) fn reserved_together(members: usize) -> Vec<Self> {
        let mut members: Vec<_> = (1..=members).map(|number| Self::named(&format!("member-{number}"))).collect();
        let cluster = members.iter().map(|member| member.cluster.clone()).collect::<Vec<_>>().join(",");
        for member in &mut members {
            member.cluster.clone_from(&cluster);
        }
        members
    }

    fn named(name: &str) -> Self {
        let unique = std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_nanos());
        let directory = std::env::temp_dir().join(format!("lcm-etcd-{name}-{}-{unique:x}", std::process::id()));
        let (client_port, peer_port) = (free_port(), free_port());
        let cluster = format!("{name}=http://127.0.0.1:{peer_port}");
        Self { process: None, directory, client_port, peer_port, name: name.to_owned(), cluster, papers: None }
    }

    /// One that runs, or is about to, and talks only to clients that show their papers.
    pub fn start_protected() -> (Self, Papers) {
        let mut etcd = Self::reserved();
        let papers = Papers::issue(&etcd.directory.join("papers"));
        etcd.papers = Some(papers.clone());
        etcd.spawn();
        (etcd, papers)
    }

    /// Where it listens, or will.
    pub fn endpoint(&self) -> String {
        format!("127.0.0.1:{}", self.client_port)
    }

    /// Starts it, with what it stored before, and waits until it answers.
    ///
    /// # Panics
    /// When there is no etcd to start, or it does not come up.
    pub async fn begin(&mut self) {
        self.spawn();
        self.come_up().await;
    }

    /// Waits until it answers, which one of several does only when most of them run.
    ///
    /// # Panics
    /// When it does not come up.
    pub(crate) async fn come_up(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !answers(&self.endpoint()).await {
            assert!(Instant::now() < deadline, "the real etcd did not come up");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Starts it, with what it stored before.
    ///
    /// # Panics
    /// When there is no etcd to start.
    pub(crate) fn spawn(&mut self) {
        let programs = std::env::var_os("LCM_ETCD_BIN").expect(
            "LCM_ETCD_BIN is not set: it names the directory with the program `etcd`. `make setup` installs it and \
             `make test` sets it",
        );
        let scheme = if self.papers.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", self.client_port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let mut command = Command::new(PathBuf::from(programs).join("etcd"));
        command.arg("--data-dir").arg(self.directory.join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        command.args(["--name", &self.name, "--initial-cluster", &self.cluster, "--log-level", "fatal"]);
        if let Some(papers) = &self.papers {
            command.arg("--client-cert-auth").arg("--trusted-ca-file").arg(&papers.authority);
            command.arg("--cert-file").arg(&papers.server.0).arg("--key-file").arg(&papers.server.1);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::inherit());
        // It may be a script that starts the real one: with a group of its own, both can be reached.
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        self.process = Some(command.spawn().expect("etcd starts"));
    }

    /// Freezes it: connections stay, nobody answers.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Ends it at once. What it stored stays.
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

impl Papers {
    fn issue(directory: &Path) -> Self {
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

/// Writes the keys of an etcd, whichever it is.
#[derive(Clone)]
pub struct Keys(Client);

impl Keys {
    /// The keys of the etcd at an endpoint.
    ///
    /// # Panics
    /// When there is none.
    pub async fn of(endpoint: &str) -> Self {
        Self(Client::connect([endpoint], None).await.expect("a client"))
    }

    /// Writes a key.
    ///
    /// # Panics
    /// When etcd refuses.
    pub async fn put(&self, key: &str, value: &str) {
        self.0.clone().put(key, value, None).await.expect("a put");
    }

    /// Deletes a key.
    ///
    /// # Panics
    /// When etcd refuses.
    pub async fn delete(&self, key: &str) {
        self.0.clone().delete(key, None).await.expect("a delete");
    }

    /// Forgets everything before the current revision.
    ///
    /// # Panics
    /// When etcd refuses.
    pub async fn compact(&self) {
        let mut client = self.0.clone();
        let now = client.get("\0", None).await.expect("an answer").header().expect("a header").revision();
        client.compact(now, Some(CompactionOptions::new().with_physical())).await.expect("a compaction");
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keys").finish_non_exhaustive()
    }
}

async fn answers(endpoint: &str) -> bool {
    let Ok(mut client) = Client::connect([endpoint], None).await else { return false };
    matches!(tokio::time::timeout(Duration::from_secs(2), client.get("health", None)).await, Ok(Ok(_)))
}

/// A port that nobody listens on, and that the system gives to nobody by itself: one who comes back after a while must
/// find it free.
fn free_port() -> u16 {
    static TRIED: AtomicU16 = AtomicU16::new(0);
    let first = (std::process::id() % 1000) as u16 * 12;
    let candidates = (0..12_000).map(|_| 20_000 + (first + TRIED.fetch_add(1, Ordering::Relaxed)) % 12_000);
    let mut free = candidates.filter(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok());
    free.next().expect("a free port")
}
