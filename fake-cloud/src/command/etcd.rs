//! The command `fake-cloud etcd`: a fake etcd alone, without the other services.

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use clap::error::ErrorKind as UsageError;
use clap::{CommandFactory, FromArgMatches, Parser};
use serde_json::json;
use tokio::net::TcpListener;

use super::{ExitStatus, finish, print_clap_error, print_stdout, stop_signal};
use crate::admin::parse_pace;
use crate::clock::{Clock, Pace};
use crate::cloud::is_loopback;
use crate::etcd::{EtcdStore, EtcdTls, Options, VERSION, serve_with};

/// An etcd v3 server in memory, for tests: the gRPC API, the JSON gateway, metrics and health checks.
///
/// All state is lost when the process stops.
#[derive(Debug, Parser)]
#[command(name = "etcd", version, verbatim_doc_comment, after_long_help = EXAMPLES, after_help = "--help shows examples.")]
struct Arguments {
    /// Port to listen on; 0 is a free one.
    #[arg(long, default_value_t = 2379)]
    port: u16,
    /// Address to listen on; an address that is not loopback requires --expose.
    #[arg(long, default_value = "127.0.0.1")]
    host: IpAddr,
    /// Allow remote access on the address given by --host.
    #[arg(long)]
    expose: bool,
    /// Print one line of JSON instead of the endpoint.
    #[arg(long)]
    json: bool,
    /// Clock pace of leases and tokens: real, or a factor such as x60.
    #[arg(long, default_value = "real", value_parser = parse_running_pace)]
    clock: Pace,
    /// Size in bytes at which puts are rejected and the alarm NOSPACE is raised.
    #[arg(long, default_value_t = 2 * 1024 * 1024 * 1024)]
    quota_backend_bytes: usize,
    /// Certificate of the server (PEM), which turns on TLS; needs --key-file.
    #[arg(long, requires = "key_file", value_name = "FILE")]
    cert_file: Option<PathBuf>,
    /// Key of the certificate (PEM).
    #[arg(long, requires = "cert_file", value_name = "FILE")]
    key_file: Option<PathBuf>,
    /// Authority of client certificates (PEM). With it, clients must present a certificate.
    #[arg(long, requires = "cert_file", value_name = "FILE")]
    trusted_ca_file: Option<PathBuf>,
}

/// Runs the command until SIGINT or SIGTERM. `program` is the name shown in help.
pub(super) async fn run(program: &str, args: impl IntoIterator<Item = OsString>) -> ExitStatus {
    match Arguments::parse(program, args) {
        Ok(arguments) => finish(arguments.serve().await),
        Err(error) => print_clap_error(&error),
    }
}

impl Arguments {
    fn parse(program: &str, args: impl IntoIterator<Item = OsString>) -> clap::error::Result<Self> {
        let mut command = Self::command().bin_name(program).no_binary_name(true);
        let arguments = Self::from_arg_matches(&command.try_get_matches_from_mut(args)?)?;
        if !arguments.expose && !is_loopback(arguments.host) {
            let host = arguments.host;
            let message = format!("--host {host} is not a loopback address; pass --expose to allow remote access");
            return Err(command.error(UsageError::MissingRequiredArgument, message));
        }
        Ok(arguments)
    }

    async fn serve(&self) -> Result<(), String> {
        let mut options = Options::default();
        if let (Some(certificate), Some(key)) = (&self.cert_file, &self.key_file) {
            let tls = EtcdTls::from_files(certificate, key, self.trusted_ca_file.as_deref());
            options = options.with_tls(tls.map_err(|error| error.to_string())?);
        }
        let stop = stop_signal().map_err(|error| format!("cannot register signal handlers: {error}"))?;
        let listener = self.listen().await.map_err(|error| error.to_string())?;
        let address = listener.local_addr().map_err(|error| error.to_string())?;
        let scheme = if options.tls.is_some() { "https" } else { "http" };
        print_stdout(&self.banner(&format!("{scheme}://{address}"))).map_err(|error| error.to_string())?;
        let store = EtcdStore::with_quota(Clock::new(self.clock), self.quota_backend_bytes);
        serve_with(listener, store, options, stop).await.map_err(|error| error.to_string())
    }

    async fn listen(&self) -> io::Result<TcpListener> {
        let address = SocketAddr::new(self.host, self.port);
        TcpListener::bind(address).await.map_err(|error| {
            let hint = if error.kind() == ErrorKind::AddrInUse { "; choose another port with --port" } else { "" };
            io::Error::new(error.kind(), format!("cannot listen on {address}: {error}{hint}"))
        })
    }

    fn banner(&self, url: &str) -> String {
        if self.json {
            let line = json!({"endpoint": url, "version": VERSION, "env": {"ETCDCTL_ENDPOINTS": url}});
            return format!("{line}\n");
        }
        format!("fake etcd {VERSION}  {url}\n\nexport ETCDCTL_ENDPOINTS={url}\n\nPress Ctrl-C to stop.\n")
    }
}

/// A pace of a clock that moves by itself: alone, the server has no admin API that could move it.
fn parse_running_pace(text: &str) -> Result<Pace, String> {
    match parse_pace(text)? {
        Pace::Manual => Err(format!("invalid clock pace '{text}': expected 'real' or a factor such as x60")),
        pace => Ok(pace),
    }
}

/// Examples at the end of `--help`.
const EXAMPLES: &str = "\
Examples:
  fake-cloud etcd                            on port 2379, like etcd itself
  fake-cloud etcd --port 0 --json            a free port, the endpoint as one line of JSON
  fake-cloud etcd --clock x60                a lease of one minute lasts a second
  fake-cloud etcd --quota-backend-bytes 1000000
                                             run into the alarm NOSPACE
  fake-cloud etcd --cert-file server.pem --key-file server.key --trusted-ca-file ca.pem
                                             TLS with client certificates

In another shell:
  export ETCDCTL_ENDPOINTS=http://127.0.0.1:2379
  etcdctl put greeting hello
  etcdctl watch --prefix '' &
  etcdctl user add root:secret && etcdctl user grant-role root root && etcdctl auth enable
  etcdctl --user root:secret get greeting
  etcdctl --user root:secret snapshot save state.db
  curl localhost:2379/v3/kv/range -d '{\"key\": \"Z3JlZXRpbmc=\"}'
  curl localhost:2379/metrics

Exit codes: 0 stopped by a signal, 1 could not start (a port in use, an invalid PEM file), 2 invalid arguments.";
