//! Sending at once. The client for ZooKeeper leaves Nagle's rule on: a small packet is kept back while the one before it has not been
//! confirmed, and servers confirm with their answer. So a create and the list of children behind it, meant as one round trip,
//! would be two. The client does not give its socket out, nor does it take one, so the socket is looked for among our own.

use super::Servers;

impl Servers {
    /// Turns Nagle's rule off for our connections to these servers. Where that does not work (another system than Linux, or one that
    /// forbids it) everything else still does.
    pub(super) fn send_at_once(&self) {
        let ports: Vec<u16> =
            self.hosts().split(',').filter_map(|host| host.rsplit_once(':')?.1.parse().ok()).collect();
        find(&ports);
    }
}

#[cfg(target_os = "linux")]
fn find(ports: &[u16]) {
    use rustix::net::{SocketAddr, getpeername, sockopt::set_tcp_nodelay};
    use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

    let Ok(ourselves) = pidfd_open(getpid(), PidfdFlags::empty()) else { return };
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    for entry in open.flatten() {
        let is_socket =
            std::fs::read_link(entry.path()).is_ok_and(|what| what.to_string_lossy().starts_with("socket:"));
        let number = entry.file_name().to_str().and_then(|number| number.parse().ok());
        let Some(number) = number.filter(|_| is_socket) else { continue };
        // A second handle of it. Whatever became of that number meanwhile: only what leads to one of these ports is touched, and there
        // this option harms nobody.
        let Ok(socket) = pidfd_getfd(&ourselves, number, PidfdGetfdFlags::empty()) else { continue };
        let peer = getpeername(&socket).ok().flatten().and_then(|peer| SocketAddr::try_from(peer).ok());
        if peer.is_some_and(|peer| ports.contains(&peer.port())) {
            let _ = set_tcp_nodelay(&socket, true);
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn find(_: &[u16]) {}
