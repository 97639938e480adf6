//! Writes a history beside the reconciles.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;

use super::line::{HistoryEncoder, RecordedReconcile};
use super::read::{EXTENSION, files_in};
use crate::lifecycle::time::Timestamp;

/// Maximum number of reconciles that wait to be written, a few megabytes.
const CAPACITY: usize = 4_096;

/// Parts into which the space of a history is divided: the oldest is deleted as a whole.
const PARTS: u64 = 8;

/// Time without writes after the disk refused one.
const PAUSE: Duration = Duration::from_secs(10);

/// Size of the buffer of a file.
const BUFFER: usize = 1 << 16;

/// Bounds of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryLimits {
    /// Maximum size of all files of the directory together, in bytes.
    pub max_bytes: u64,
    /// Maximum age of a file. Older ones are deleted.
    pub max_age: Duration,
    /// One in this many reconciles that change nothing is written; 0 for none.
    pub sample: u64,
}

impl Default for HistoryLimits {
    fn default() -> Self {
        Self { max_bytes: 256 << 20, max_age: Duration::from_secs(7 * 24 * 3600), sample: 100 }
    }
}

/// Writes the reconciles of a process to files of their own in a directory. Clones share one thread and its queue.
///
/// # Guarantees
/// No call waits for the disk. A reconcile that finds the queue full, or whose write fails, is counted as
/// [lost](Self::lost) and logged. All others are in the file once [`flush`](Self::flush) returns true or the last clone
/// is dropped. The files are readable by their owner only.
///
/// ```
/// use std::sync::Arc;
/// use lcm_sdk::history::{HistoryLimits, HistoryReader, HistoryWriter, RecordedReconcile};
/// use lcm_sdk::{Observation, Policy, Worker, WorkerStatus, decide};
///
/// let directory = std::env::temp_dir().join(format!("lcm-history-{}", std::process::id()));
/// let writer = HistoryWriter::new(&directory, HistoryLimits::default())?;
/// let (worker, seen) = (Worker::new("w-1", WorkerStatus::Stopped), Observation::default());
/// let (policy, now) = (Arc::new(Policy::default()), "2026-02-06T08:00:00Z".parse().unwrap());
/// let decision = decide(&worker, &seen, &policy, now);
/// writer.write(RecordedReconcile::new(&worker, &seen, policy, now, &decision, &[]));
/// drop(writer);
///
/// assert_eq!(HistoryReader::open(&directory).unwrap().count(), 1);
/// # std::fs::remove_dir_all(directory)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct HistoryWriter(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    sender: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
    lost: Arc<AtomicU64>,
    routine: AtomicU64,
    sample: u64,
    /// The process that has the thread. A forked one has the queue without it.
    process: u32,
}

enum Message {
    Reconcile(Box<RecordedReconcile>),
    Flush(oneshot::Sender<()>),
}

impl HistoryWriter {
    /// Creates the directory and starts the thread. The first file begins with the first reconcile.
    ///
    /// # Errors
    /// If the directory or the thread cannot be created.
    pub fn new(directory: &Path, limits: HistoryLimits) -> io::Result<Self> {
        std::fs::create_dir_all(directory)?;
        let lost = Arc::new(AtomicU64::new(0));
        let mut files = Files::new(directory.to_owned(), limits);
        let (sender, receiver) = sync_channel(CAPACITY);
        let run = {
            let lost = Arc::clone(&lost);
            move || run(&receiver, &mut files, &lost)
        };
        let thread = std::thread::Builder::new().name("lcm-history".to_owned()).spawn(run)?;
        let (routine, sample, process) = (AtomicU64::new(0), limits.sample, std::process::id());
        Ok(Self(Arc::new(Queue { sender: Some(sender), thread: Some(thread), lost, routine, sample, process })))
    }

    /// Queues a reconcile.
    pub fn write(&self, reconcile: RecordedReconcile) {
        let Some(sender) = &self.0.sender else { return };
        match sender.try_send(Message::Reconcile(Box::new(reconcile))) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.0.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Whether a reconcile that changed nothing is written. Counts it.
    pub fn takes_sample(&self) -> bool {
        let Queue { routine, sample, .. } = &*self.0;
        *sample > 0 && routine.fetch_add(1, Ordering::Relaxed).is_multiple_of(*sample)
    }

    /// Number of reconciles that were lost since the start.
    pub fn lost(&self) -> u64 {
        self.0.lost.load(Ordering::Relaxed)
    }

    /// Waits until all reconciles queued so far are in the file, up to a limit. Returns whether they are.
    pub async fn flush(&self, limit: Duration) -> bool {
        let Some(sender) = &self.0.sender else { return true };
        let flushed = async {
            let (done, wait) = oneshot::channel();
            let mut message = Message::Flush(done);
            loop {
                message = match sender.try_send(message) {
                    Ok(()) => return wait.await.is_ok(),
                    Err(TrySendError::Disconnected(_)) => return false,
                    Err(TrySendError::Full(message)) => message,
                };
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(limit, flushed).await.unwrap_or(false)
    }
}

/// Ends the thread once its queue is empty.
impl Drop for Queue {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take()
            && self.process == std::process::id()
        {
            // A panic of the thread was reported by its hook.
            drop(thread.join());
        }
    }
}

/// Writes until all senders are gone. Data goes to the operating system whenever the queue is empty.
fn run(receiver: &Receiver<Message>, files: &mut Files, lost: &AtomicU64) {
    let mut reported = 0;
    loop {
        let message = match receiver.try_recv() {
            Ok(message) => message,
            Err(TryRecvError::Disconnected) => break,
            Err(TryRecvError::Empty) => {
                files.flush(lost);
                let missing = lost.load(Ordering::Relaxed);
                if missing > reported {
                    tracing::warn!(target: "lcm::history", lost = missing, "the history lacks reconciles: the queue was full, or the disk refused a write");
                    reported = missing;
                }
                match receiver.recv() {
                    Ok(message) => message,
                    Err(_) => break,
                }
            }
        };
        match message {
            Message::Reconcile(reconcile) => files.write(&reconcile, lost),
            Message::Flush(done) => {
                files.flush(lost);
                // The caller may have stopped waiting.
                done.send(()).ok();
            }
        }
    }
    files.flush(lost);
}

/// The files of one process.
struct Files {
    directory: PathBuf,
    limits: HistoryLimits,
    current: Option<Current>,
    paused_at: Option<Instant>,
    begun: u64,
}

struct Current {
    file: BufWriter<File>,
    begun_at: Instant,
    bytes: u64,
    /// Lines that may still be in the buffer.
    unflushed: u64,
    encoder: HistoryEncoder,
    text: Vec<u8>,
}

impl Files {
    fn new(directory: PathBuf, limits: HistoryLimits) -> Self {
        Self { directory, limits, current: None, paused_at: None, begun: 0 }
    }

    /// Begins a file with a header, and deletes files beyond the limits.
    fn begin(&mut self) -> io::Result<()> {
        let now: Timestamp = SystemTime::now().into();
        self.begun += 1;
        let name =
            format!("history-{}-{}-{}.{EXTENSION}", now.format("%Y%m%dT%H%M%S%3fZ"), std::process::id(), self.begun);
        let mut options = OpenOptions::new();
        options.create_new(true).append(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(self.directory.join(name))?;
        let mut current = Current {
            file: BufWriter::with_capacity(BUFFER, file),
            begun_at: Instant::now(),
            bytes: 0,
            unflushed: 0,
            encoder: HistoryEncoder::default(),
            text: Vec::new(),
        };
        current.encoder.header(now, &mut current.text)?;
        current.write()?;
        current.file.flush()?;
        self.current = Some(current);
        self.delete_old();
        Ok(())
    }

    fn write(&mut self, reconcile: &RecordedReconcile, lost: &AtomicU64) {
        if self.paused_at.is_some_and(|at| at.elapsed() < PAUSE) {
            lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Err(error) = self.try_write(reconcile) {
            lost.fetch_add(1, Ordering::Relaxed);
            self.give_up(&error, lost);
        }
    }

    fn try_write(&mut self, reconcile: &RecordedReconcile) -> io::Result<()> {
        let (max_bytes, max_age) = (self.limits.max_bytes / PARTS, self.limits.max_age / PARTS as u32);
        let is_full = |current: &Current| current.bytes >= max_bytes || current.begun_at.elapsed() >= max_age;
        if self.current.as_ref().is_none_or(is_full) {
            if let Some(mut full) = self.current.take() {
                full.file.flush()?;
            }
            self.begin()?;
        }
        let Some(current) = &mut self.current else { return Ok(()) };
        current.encoder.reconcile(reconcile, &mut current.text)?;
        current.write()
    }

    fn flush(&mut self, lost: &AtomicU64) {
        let Some(current) = &mut self.current else { return };
        match current.file.flush() {
            Ok(()) => current.unflushed = 0,
            Err(error) => self.give_up(&error, lost),
        }
    }

    /// Leaves the file, whose last line may be torn, and pauses.
    fn give_up(&mut self, error: &io::Error, lost: &AtomicU64) {
        tracing::warn!(target: "lcm::history", %error, directory = %self.directory.display(), "the history cannot be written");
        if let Some(current) = self.current.take() {
            lost.fetch_add(current.unflushed, Ordering::Relaxed);
            // The disk refuses writes: the buffer is dropped instead of written by the destructor.
            drop(current.file.into_parts());
        }
        self.paused_at = Some(Instant::now());
    }

    /// Deletes the oldest files until the limits hold, with room for the current one.
    fn delete_old(&self) {
        let Ok(files) = files_in(&self.directory) else { return };
        let files: Vec<_> = files.into_iter().filter_map(|path| Some((path.metadata().ok()?, path))).collect();
        let room = self.limits.max_bytes - self.limits.max_bytes / PARTS;
        let mut total: u64 = files.iter().map(|(metadata, _)| metadata.len()).sum();
        let now = SystemTime::now();
        // The last one is the current file.
        for (metadata, path) in files.iter().rev().skip(1).rev() {
            let written_at = metadata.modified().unwrap_or(now);
            let is_old = now.duration_since(written_at).is_ok_and(|age| age > self.limits.max_age);
            if (total > room || is_old) && std::fs::remove_file(path).is_ok() {
                total -= metadata.len();
            }
        }
    }
}

impl Current {
    /// Writes the encoded lines to the buffer.
    fn write(&mut self) -> io::Result<()> {
        self.unflushed += 1;
        self.file.write_all(&self.text)?;
        self.bytes += self.text.len() as u64;
        self.text.clear();
        Ok(())
    }
}
