//! Checks of the container, each with a name, a verdict and a timeout.

use super::{EvolveHandle, EvolveParts};
use crate::protocol::evolve::container_reports::EvolveCheck;
use crate::protocol::kernel::DEFAULT_SESSION;
use futures_util::future::join_all;
use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZero;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a kernel may take to become ready and to reload its variables.
pub(super) const EVOLVE_KERNEL_TIMEOUT: Duration = Duration::from_secs(100);

/// How long a service of the desktop may take, its dependencies included.
const EVOLVE_SERVICE_TIMEOUT: Duration = Duration::from_secs(45);

/// How long an MCP server may take to start and to list its tools. All checks run at the same time, and the disk cache
/// may be cold.
const EVOLVE_MCP_SERVER_TIMEOUT: Duration = Duration::from_secs(45);

/// Time limit of an MCP server of an unchanged image to start and to list its tools.
const SAME_IMAGE_SERVER_TIMEOUT: Duration = Duration::from_secs(10);

const EVOLVE_PORT_TIMEOUT: Duration = Duration::from_secs(5);

/// The default port of VNC clients.
const EVOLVE_VNC_PORT: u16 = 5900;

/// How much longer than usual a service or server may take on a busy machine. All checks end within the keeper's limit,
/// so that the record names the check that hangs: with this factor, 45 s become 67.5 s of the 90 s that the keeper gives
/// the checks of *verifying*; a factor of 2 would leave nothing.
const MAX_LOAD_FACTOR: f64 = 1.5;

/// The time limit on this machine now. A server that starts in ten seconds takes longer where several programs wait
/// for each core.
fn stretch_for_load(limit: Duration) -> Duration {
    let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let cores = available_parallelism().map_or(1, NonZero::get);
    limit.mul_f64(load_factor(&load, cores))
}

/// The programs that wait for each core, from 1 to [`MAX_LOAD_FACTOR`].
fn load_factor(load: &str, cores: usize) -> f64 {
    let latest = load
        .split(' ')
        .next()
        .and_then(|number| number.parse().ok());
    let waiting = latest.unwrap_or(0.0) / cores as f64;
    waiting.clamp(1.0, MAX_LOAD_FACTOR)
}

/// A check that passes; a failure becomes a warning in its finding.
fn failure_as_warning(check: EvolveCheck) -> EvolveCheck {
    if check.passed {
        return check;
    }
    EvolveCheck {
        passed: true,
        detail: format!("warning: {}; the image is unchanged", check.detail),
        ..check
    }
}

/// Runs one check with a timeout.
pub(super) async fn run_check(
    name: impl Into<String>,
    time_limit: Duration,
    check: impl Future<Output = Result<String, String>>,
) -> EvolveCheck {
    let started = Instant::now();
    let result = timeout(time_limit, check).await;
    let result = result.unwrap_or_else(|_| {
        let seconds = time_limit.as_secs_f64();
        Err(format!("the check did not finish within {seconds} s"))
    });
    let (passed, detail) = match result {
        Ok(detail) => (true, detail),
        Err(detail) => (false, detail),
    };
    EvolveCheck {
        name: name.into(),
        passed,
        detail,
        timing_ms: (started.elapsed().as_secs_f64() * 1e6).round() / 1e3,
    }
}

impl EvolveParts {
    /// Checks that the default session's kernel is ready.
    pub(super) async fn check_kernel(&self) -> EvolveCheck {
        run_check("kernel", EVOLVE_KERNEL_TIMEOUT, async {
            let kernel = self.sessions.find_kernel(DEFAULT_SESSION);
            let kernel = kernel.map_err(|refusal| format!("{refusal:?}"))?;
            let ready = timeout(EVOLVE_KERNEL_TIMEOUT, kernel.wait_ready()).await;
            ready.map_err(|_| kernel.view().detail)?;
            Ok(kernel.view().detail)
        })
        .await
    }

    pub(super) async fn check_services(&self, names: &[String]) -> Vec<EvolveCheck> {
        let each = names.iter().map(|name| {
            let named = format!("service:{name}");
            run_check(
                named,
                stretch_for_load(EVOLVE_SERVICE_TIMEOUT),
                self.desktop.check_service(name),
            )
        });
        join_all(each).await
    }

    /// Checks that MCP servers list their tools. A server of an unchanged image was tested when the image was built: it
    /// may be slow on a busy machine, and does not prevent a change of the settings.
    pub(super) async fn check_servers(
        &self,
        names: &[String],
        same_image: bool,
    ) -> Vec<EvolveCheck> {
        let limit = match same_image {
            true => SAME_IMAGE_SERVER_TIMEOUT,
            false => stretch_for_load(EVOLVE_MCP_SERVER_TIMEOUT),
        };
        let each = names.iter().map(|name| {
            let proved = async {
                let count = self.hub.probe_server(name).await?;
                Ok(format!("the server lists {count} tools"))
            };
            run_check(format!("mcp:{name}"), limit, proved)
        });
        let checks = join_all(each).await;
        match same_image {
            true => checks.into_iter().map(failure_as_warning).collect(),
            false => checks,
        }
    }
}

impl EvolveHandle {
    /// Checks that the ports answer on the container's network address, and not only on loopback.
    pub(super) async fn check_ports(&self) -> Vec<EvolveCheck> {
        let address = own_address();
        let checks = self.settings.ports.iter().map(|port| {
            let name = format!("port:{port}");
            run_check(name, EVOLVE_PORT_TIMEOUT, probe_port(address, *port, true))
        });
        let mut checks = join_all(checks).await;
        if self.parts.desktop.is_configured() {
            let name = format!("port:{EVOLVE_VNC_PORT}");
            checks.push(
                run_check(
                    name,
                    EVOLVE_PORT_TIMEOUT,
                    probe_port(address, EVOLVE_VNC_PORT, false),
                )
                .await,
            );
        }
        checks
    }
}

/// Whether a server answers at this port, with HTTP or VNC.
async fn probe_port(address: IpAddr, port: u16, is_http: bool) -> Result<String, String> {
    let spoken = async {
        let mut stream = TcpStream::connect((address, port)).await?;
        let mut begin = vec![0; if is_http { 12 } else { 4 }];
        if is_http {
            let request = "GET /ping HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
            stream.write_all(request.as_bytes()).await?;
        }
        stream.read_exact(&mut begin).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&begin).into_owned())
    };
    let begin = spoken
        .await
        .map_err(|error| format!("{address}: {error}"))?;
    let expected = if is_http { "HTTP/1.1 200" } else { "RFB " };
    match begin == expected {
        true => Ok("the port answers".into()),
        false => Err(format!("unexpected answer: `{}`", begin.escape_debug())),
    }
}

/// The address of this container on its network; without one, loopback.
fn own_address() -> IpAddr {
    let name = fs::read_to_string("/etc/hostname").unwrap_or_default();
    let hosts = fs::read_to_string("/etc/hosts").unwrap_or_default();
    find_host_address(name.trim(), &hosts).unwrap_or(Ipv4Addr::LOCALHOST.into())
}

fn find_host_address(name: &str, hosts: &str) -> Option<IpAddr> {
    let entries = hosts.lines().map(str::split_whitespace);
    let mut named = entries.filter_map(|mut fields| {
        let address: IpAddr = fields.next()?.parse().ok()?;
        fields.any(|field| field == name).then_some(address)
    });
    named.find(IpAddr::is_ipv4)
}

#[cfg(test)]
mod tests {
    use super::{failure_as_warning, find_host_address, load_factor, run_check};
    use std::future::pending;
    use std::time::Duration;

    #[test]
    fn a_container_finds_its_own_address() {
        let hosts = "127.0.0.1\tlocalhost\n::1\tlocalhost\n172.17.0.2\tos-host\n";
        assert_eq!(
            find_host_address("os-host", hosts),
            "172.17.0.2".parse().ok()
        );
        assert_eq!(find_host_address("other", hosts), None);
    }

    #[test]
    fn a_busy_machine_gets_more_time_up_to_a_limit() {
        let factors = ["0.10 0.2 0.3 1/9 8", "2.50 1 1 1/9 8", "64.5 1 1 1/9 8", ""]
            .map(|load| load_factor(load, 2));
        assert_eq!(factors, [1.0, 1.25, 1.5, 1.0]);
    }

    #[tokio::test]
    async fn hanging_check_fails_with_its_name() {
        let hangs = run_check("mcp:a", Duration::ZERO, pending()).await;
        assert!(!hangs.passed && hangs.name == "mcp:a");
        assert_eq!(hangs.detail, "the check did not finish within 0 s");
        let fine = run_check("b", Duration::from_secs(3), async { Ok("x".into()) }).await;
        assert!(fine.passed && fine.detail == "x");
    }

    #[tokio::test]
    async fn a_slow_server_of_an_unchanged_image_is_a_warning() {
        let slow = failure_as_warning(run_check("mcp:a", Duration::ZERO, pending()).await);
        assert!(slow.passed);
        let expected = "warning: the check did not finish within 0 s; the image is unchanged";
        assert_eq!(slow.detail, expected);
        let fine = run_check("mcp:b", Duration::from_secs(3), async { Ok("x".into()) });
        let fine = fine.await;
        assert_eq!(failure_as_warning(fine.clone()), fine);
    }
}
