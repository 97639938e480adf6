//! Two controllers, each a process of its own, of which one leads until it is killed.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fake_cloud::etcd::{Fault, KeyRange, Range, Record};
use lcm_sdk::controller::ElectionConfig;

use crate::fixture::Fixture;

struct Controller {
    identity: String,
    process: Child,
}

pub(crate) struct Pair {
    fixture: Arc<Fixture>,
    logs: PathBuf,
    running: Vec<Controller>,
    started: usize,
}

impl Pair {
    pub(crate) fn start(fixture: &Arc<Fixture>) -> Self {
        let logs = std::env::temp_dir().join(format!("lcm-kills-{}", std::process::id()));
        std::fs::create_dir_all(&logs).expect("a directory");
        let mut pair = Self { fixture: Arc::clone(fixture), logs, running: Vec::new(), started: 0 };
        pair.start_another();
        pair.start_another();
        pair
    }

    pub(crate) fn start_another(&mut self) {
        self.started += 1;
        let identity = format!("c-{}", self.started);
        let log = File::create(self.logs.join(&identity)).expect("a file");
        let process = Command::new(env!("CARGO_BIN_EXE_worker-controller-under-test"))
            .env_clear()
            .envs(self.fixture.environment())
            .env("LCM_INSTANCE_ID", &identity)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("it starts");
        self.running.push(Controller { identity, process });
    }

    /// The key of the one that leads.
    fn key(&self) -> Option<Arc<Record>> {
        let range = Range::new(KeyRange::One(ElectionConfig::WORKER_CONTROLLER.into()));
        self.fixture.cloud.etcd().range(&range).expect("a good range").records.pop()
    }

    /// Who of the two leads, as soon as one does.
    pub(crate) fn leader(&mut self, patience: Duration) -> String {
        let deadline = Instant::now() + patience;
        loop {
            self.assert_alive();
            let holder = self.key().map(|key| String::from_utf8_lossy(&key.value).into_owned());
            if let Some(holder) = holder.filter(|holder| self.running.iter().any(|it| it.identity == *holder)) {
                return holder;
            }
            assert!(Instant::now() < deadline, "nobody leads:\n{}", self.last_words());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Ends one at once: nothing is finished, nothing is given back.
    pub(crate) fn kill(&mut self, identity: &str) {
        let place = self.running.iter().position(|it| it.identity == identity).expect("it runs");
        let mut killed = self.running.remove(place);
        killed.process.kill().expect("it is ours");
        killed.process.wait().expect("it is ours");
        drop(std::fs::remove_file(self.logs.join(identity)));
    }

    /// Ends the lease of one that was killed.
    pub(crate) fn bury(&self, identity: &str) {
        if let Some(key) = self.key().filter(|key| key.value == identity.as_bytes()) {
            self.fixture.cloud.etcd().inject(Fault::LeaseLost(Some(key.lease)));
        }
    }

    /// Nobody ends unless killed.
    pub(crate) fn assert_alive(&mut self) {
        for controller in &mut self.running {
            let ended = controller.process.try_wait().expect("it is ours");
            assert!(ended.is_none(), "{} ended by itself: {ended:?}, see {}", controller.identity, self.logs.display());
        }
    }

    /// The end of what those who run have logged.
    pub(crate) fn last_words(&self) -> String {
        let end = |controller: &Controller| {
            let log = std::fs::read_to_string(self.logs.join(&controller.identity)).unwrap_or_default();
            let lines: Vec<_> = log.lines().rev().take(30).collect();
            let lines: Vec<_> = lines.into_iter().rev().collect();
            format!("{}:\n{}", controller.identity, lines.join("\n"))
        };
        self.running.iter().map(end).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        for controller in &mut self.running {
            drop(controller.process.kill());
            drop(controller.process.wait());
        }
        if !std::thread::panicking() {
            drop(std::fs::remove_dir_all(&self.logs));
        }
    }
}
