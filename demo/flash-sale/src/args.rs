//! The command line.

use crate::servers::Kind;
use crate::strategy::Strategy;
use clap::{Args, Parser, Subcommand};
use fencelock::limit::Rate;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The shop that oversells, and every way to stop it.
///
/// Without a command: starts the stage and serves its page.
#[derive(Parser, Debug)]
#[command(version)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    #[command(flatten)]
    pub(crate) page: PageArgs,
    #[command(flatten)]
    pub(crate) common: Common,
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Runs every strategy that the stores allow, and prints one table
    Story(StoryArgs),
    /// Runs one sale
    Sale(SaleArgs),
    /// Measures stripes against one lock, and a lock per product against one for the shop
    Compare(CompareArgs),
    /// Opens a shop and keeps it open until Ctrl-C: for JMeter, curl, or `load` from elsewhere
    Shop(ShopArgs),
    /// Sends customers to a shop that runs already
    Load(LoadArgs),
    /// One node of the shop (the stage starts it)
    #[command(hide = true)]
    Node(NodeArgs),
}

/// What every sale needs.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// The shop's database: sqlite:PATH, postgres://... or mysql://... (a SQLite file in a temporary folder if not given)
    #[arg(long, global = true)]
    pub(crate) db: Option<String>,
    /// Where the locks are: any URL that fencelock knows; may be given several times
    #[arg(long, global = true)]
    pub(crate) store: Vec<String>,
    /// Start every server that is found on this machine, beside SQLite, each in a temporary folder: Redis, MariaDB, PostgreSQL,
    /// ZooKeeper, etcd, Consul
    #[arg(long, global = true)]
    pub(crate) all: bool,
    /// Start this one of them, instead of SQLite; may be given several times
    #[arg(long, global = true)]
    pub(crate) start: Vec<Kind>,
    /// Customers at a time
    #[arg(long, global = true, default_value_t = 50)]
    pub(crate) customers: usize,
    /// How often each of them comes
    #[arg(long, global = true, default_value_t = 10)]
    pub(crate) rounds: usize,
    /// How many pieces there are
    #[arg(long, global = true, default_value_t = 100)]
    pub(crate) stock: i64,
    /// How long a node thinks between the read and the write
    #[arg(long, global = true, default_value = "2ms", value_parser = fencelock::duration::parse)]
    pub(crate) work: Duration,
    /// The lease of a lock
    #[arg(long, global = true, default_value = "10s", value_parser = fencelock::duration::parse)]
    pub(crate) lease: Duration,
    /// Let the customers alternate between the nodes even if there is an nginx
    #[arg(long, global = true)]
    pub(crate) no_nginx: bool,
    #[command(flatten)]
    pub(crate) limits: Limits,
}

/// The limiters in front.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Limits {
    /// A token bucket at each node: 10/s for instance
    #[arg(long, global = true)]
    pub(crate) limit: Option<Rate>,
    /// nginx's limit_req for each address: 100r/s for instance
    #[arg(long, global = true)]
    pub(crate) limit_req: Option<String>,
    /// The burst of limit_req
    #[arg(long, global = true, default_value_t = 20)]
    pub(crate) burst: u32,
    /// The burst of limit_req goes without delay
    #[arg(long, global = true)]
    pub(crate) nodelay: bool,
    /// nginx's limit_conn: connections for each address
    #[arg(long, global = true)]
    pub(crate) conn_per_address: Option<u32>,
    /// nginx's limit_conn: connections in all
    #[arg(long, global = true)]
    pub(crate) conn_per_server: Option<u32>,
}

/// The page.
#[derive(Args, Debug)]
pub(crate) struct PageArgs {
    /// Where the page is served
    #[arg(long, default_value = "127.0.0.1:8030")]
    pub(crate) listen: SocketAddr,
    /// Serve the page's files from this folder, as they are at the moment, instead of those that are built in
    #[arg(long)]
    pub(crate) page: Option<PathBuf>,
}

#[derive(Args, Debug)]
pub(crate) struct StoryArgs {
    /// Only what needs nothing installed, on two nodes
    #[arg(long)]
    pub(crate) quick: bool,
    /// Print the rows as JSON on standard output
    #[arg(long)]
    pub(crate) json: bool,
    /// Freeze a node inside its critical section past the lease
    #[arg(long)]
    pub(crate) pause: bool,
    /// Only these strategies
    #[arg(long)]
    pub(crate) only: Vec<Strategy>,
    /// Where the table goes as Markdown, JSON and SVG
    #[arg(long, default_value = "target/flash-sale")]
    pub(crate) out: PathBuf,
}

#[derive(Args, Debug)]
pub(crate) struct SaleArgs {
    /// How to keep the books right, or not
    #[arg(long)]
    pub(crate) strategy: Strategy,
    /// How many nodes
    #[arg(long, default_value_t = 2)]
    pub(crate) nodes: usize,
    /// How many products the stock is of (1; with a lock per product 10)
    #[arg(long)]
    pub(crate) products: Option<u32>,
    /// Freeze a node inside its critical section past the lease
    #[arg(long, conflicts_with = "kill")]
    pub(crate) pause: bool,
    /// Kill every node with -9 in the middle of the sale, and start it again
    #[arg(long)]
    pub(crate) kill: bool,
    /// Print the row as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct ShopArgs {
    /// How to keep the books right, or not
    #[arg(long)]
    pub(crate) strategy: Strategy,
    /// How many nodes
    #[arg(long, default_value_t = 2)]
    pub(crate) nodes: usize,
    /// Where nginx listens
    #[arg(long, default_value = "127.0.0.1:8040")]
    pub(crate) front: SocketAddr,
}

#[derive(Args, Debug)]
pub(crate) struct CompareArgs {
    /// Print the rows as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct LoadArgs {
    /// Address and port of the shop; of several, the customers alternate
    #[arg(long, required = true)]
    pub(crate) to: Vec<SocketAddr>,
    /// Which products they want: 1 to this
    #[arg(long, default_value_t = 1)]
    pub(crate) products: u32,
    /// Print the numbers as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Args, Debug)]
pub(crate) struct NodeArgs {
    #[arg(long)]
    pub(crate) name: String,
    #[arg(long)]
    pub(crate) listen: SocketAddr,
    #[arg(long)]
    pub(crate) strategy: Strategy,
    /// What a holder by hand sleeps between GET and DEL
    #[arg(long, default_value = "0s", value_parser = fencelock::duration::parse)]
    pub(crate) pause_before_del: Duration,
    /// The expiry of a lock by hand
    #[arg(long, default_value = "30s", value_parser = fencelock::duration::parse)]
    pub(crate) expiry: Duration,
    // The rest is taken from `Common`, which is global.
    #[arg(skip)]
    pub(crate) db: String,
    #[arg(skip)]
    pub(crate) store: Option<String>,
    #[arg(skip)]
    pub(crate) work: Duration,
    #[arg(skip)]
    pub(crate) lease: Duration,
    #[arg(skip)]
    pub(crate) limit: Option<Rate>,
}

impl NodeArgs {
    /// With what all commands share.
    pub(crate) fn with(mut self, common: Common) -> NodeArgs {
        self.db = common.db.unwrap_or_default();
        self.store = common.store.into_iter().next();
        (self.work, self.lease, self.limit) = (common.work, common.lease, common.limits.limit);
        self
    }
}
