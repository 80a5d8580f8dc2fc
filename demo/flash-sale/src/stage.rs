//! Two nodes, each a process of its own, and nginx in front of them where there is one.

use crate::Result;
use crate::hook::Point;
use crate::nginx::{self, Nginx};
use crate::plan::Plan;
use rustix::process::{Pid, Signal, kill_process};
use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

/// How long a node has to come up: the machine may be busy.
const UP: Duration = Duration::from_secs(60);

/// A node that runs; it is killed when this is dropped.
pub(crate) struct Node {
    number: usize,
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
    address: SocketAddr,
}

/// Everything that one sale needs.
pub(crate) struct Stage {
    plan: Plan,
    pub(crate) nodes: Vec<Node>,
    front: Option<Nginx>,
    _folder: tempfile::TempDir,
}

/// How the nodes are called in the books.
pub(crate) fn name(number: usize) -> String {
    format!("node-{}", number + 1)
}

impl Node {
    async fn start(plan: &Plan, number: usize, listen: SocketAddr) -> Result<Node> {
        let text = |time: Duration| format!("{}ms", time.as_millis());
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["node", "--name", &name(number), "--listen", &listen.to_string()]);
        command.args(["--strategy", &plan.strategy.name(), "--db", &plan.db]);
        command.args(["--work", &text(plan.work), "--lease", &text(plan.lease), "--expiry", &text(plan.expiry)]);
        command.args(["--pause-before-del", &text(plan.pause_before_del)]);
        if let Some(store) = &plan.store {
            command.args(["--store", store]);
        }
        if let Some(rate) = &plan.limit {
            command.args(["--limit", rate]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let (stdin, stdout) = (child.stdin.take().ok_or("no pipe")?, child.stdout.take().ok_or("no pipe")?);
        let mut stdout = BufReader::new(stdout).lines();
        let line = tokio::time::timeout(UP, stdout.next_line()).await.map_err(|_| "a node does not come up")??;
        let address = line.as_deref().and_then(|line| line.strip_prefix("ready ")?.parse().ok());
        let address = address.ok_or("a node could not start: see above")?;
        Ok(Node { number, child, stdin, stdout, address })
    }

    async fn tell(&mut self, line: &str) -> Result<()> {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(self.stdin.flush().await?)
    }

    /// Waits until somebody in this node has got to the point, and stands there.
    pub(crate) async fn catch(&mut self, point: Point) -> Result<()> {
        self.tell(&format!("arm {}", point.word())).await?;
        let wanted = format!("at {}", point.word());
        while let Some(line) = self.stdout.next_line().await? {
            if line == wanted {
                return Ok(());
            }
        }
        Err("the node has ended".into())
    }

    /// Whoever stands at a point goes on.
    pub(crate) async fn go(&mut self) -> Result<()> {
        self.tell("go").await
    }

    /// `STOP`, `CONT` or `KILL`, to the process.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let pid = self.child.id().and_then(|id| Pid::from_raw(i32::try_from(id).ok()?)).ok_or("the node has ended")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Kills it and waits until it is gone.
    pub(crate) async fn kill(&mut self) -> Result<()> {
        self.signal(Signal::KILL)?;
        self.child.wait().await?;
        Ok(())
    }
}

impl Stage {
    /// Starts the nodes, and nginx where it is there and wanted.
    pub(crate) async fn open(plan: &Plan) -> Result<Stage> {
        let folder = tempfile::tempdir()?;
        let starting = (0..plan.nodes).map(|number| Node::start(plan, number, ([127, 0, 0, 1], 0).into()));
        let nodes: Vec<Node> = futures_util::future::try_join_all(starting).await?;
        let addresses: Vec<SocketAddr> = nodes.iter().map(|node| node.address).collect();
        let front = match plan.nginx && nginx::found().is_some() {
            true => Some(Nginx::start(folder.path(), plan.front, &addresses, &plan.limits).await?),
            false => None,
        };
        Ok(Stage { plan: plan.clone(), nodes, front, _folder: folder })
    }

    /// Where customers go: to nginx, or to the nodes in turn.
    pub(crate) fn doors(&self) -> Vec<SocketAddr> {
        match &self.front {
            Some(nginx) => vec![nginx.address],
            None => self.nodes.iter().map(|node| node.address).collect(),
        }
    }

    /// Where nginx is, if it is there.
    pub(crate) fn nginx(&self) -> Option<SocketAddr> {
        self.front.as_ref().map(|nginx| nginx.address)
    }

    /// Where everything is, in words.
    pub(crate) fn told(&self) -> Vec<String> {
        let nodes = self.nodes.iter().map(|node| format!("{}: http://{}", name(node.number), node.address));
        let front = match self.nginx() {
            Some(address) => format!("nginx in front, round robin: http://{address}"),
            None => self.front().to_string(),
        };
        nodes.chain([front]).collect()
    }

    /// What stands in front, in words.
    pub(crate) fn front(&self) -> &'static str {
        match &self.front {
            Some(_) => "nginx in front, round robin",
            None if self.plan.nginx => "no nginx on this machine: the customers alternate between the nodes",
            None => "the customers alternate between the nodes",
        }
    }

    /// Starts a node that has ended, where it was.
    pub(crate) async fn restart(&mut self, number: usize) -> Result<()> {
        let address = self.nodes[number].address;
        self.nodes[number] = Node::start(&self.plan, number, address).await?;
        debug_assert_eq!(self.nodes[number].number, number);
        Ok(())
    }
}
