//! The shop that oversells, and every way to stop it: two nodes, a crowd of customers, a table of what came out.

mod args;
mod by_hand;
mod compare;
mod hook;
mod live;
mod load;
mod nginx;
mod node;
mod page;
mod plan;
mod report;
mod sale;
mod seller;
mod servers;
mod shop;
mod stage;
mod story;
mod strategy;
mod web;

use args::{Cli, Command, Common, LoadArgs, SaleArgs, ShopArgs};
use clap::Parser;
use live::Live;
use plan::{Fault, Plan};
use servers::World;
use std::process::ExitCode;
use std::time::Duration;

/// Whatever goes wrong is told in words.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

#[tokio::main]
async fn main() -> ExitCode {
    let Cli { command, page, common } = Cli::parse();
    let done = match command {
        None => web::serve(page, common).await,
        Some(Command::Story(args)) => story::tell(&args, &common).await,
        Some(Command::Sale(args)) => one_sale(&args, &common).await,
        Some(Command::Compare(args)) => compare::run(&args, &common).await,
        Some(Command::Shop(args)) => keep_shop(&args, &common).await,
        Some(Command::Load(args)) => send_customers(&args, &common).await,
        Some(Command::Node(args)) => node::serve(args.with(common)).await.map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("flash-sale: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn one_sale(args: &SaleArgs, common: &Common) -> Result<bool> {
    let world = World::open(common)?;
    let store = world.stores.first().map(String::as_str);
    let mut plan = Plan::new(common, args.strategy, &world.databases[0], store);
    (plan.nodes, plan.products) = (args.nodes.max(1), args.products.unwrap_or(plan.products).max(1));
    if args.pause {
        (plan.fault, plan.lease, plan.expiry) = (Fault::Paused, sale::SHORT_LEASE, sale::SHORT_LEASE);
    } else if args.kill {
        (plan.fault, plan.lease, plan.expiry) = (Fault::Killed, sale::SHORT_LEASE, sale::SHORT_LEASE);
    }
    let (row, numbers) = sale::run(&plan, &Live::for_terminal()).await?;
    if args.json {
        println!("{}", serde_json::to_string(&row)?);
    } else {
        println!("{}", report::markdown(std::slice::from_ref(&row), &[]));
    }
    eprintln!("{}", numbers.told());
    Ok(row.verdict == "right")
}

/// Opens a shop for customers from elsewhere, and reads the books when it is closed.
async fn keep_shop(args: &ShopArgs, common: &Common) -> Result<bool> {
    let world = World::open(common)?;
    let store = world.stores.first().map(String::as_str);
    let mut plan = Plan::new(common, args.strategy, &world.databases[0], store);
    (plan.nodes, plan.front) = (args.nodes.max(1), Some(args.front));
    let shop = shop::Shop::open(&plan.db).await?;
    plan.stock_up(&shop).await?;
    let stage = stage::Stage::open(&plan).await?;
    eprintln!("{}", stage.front());
    for door in stage.doors() {
        println!("open: http://{door}/stock/1");
    }
    tokio::signal::ctrl_c().await?;
    drop(stage);
    let books = shop.books().await?;
    println!("{} left, {} of {} sold, by {:?}", books.left, books.sold, plan.stock, books.by_node);
    Ok(books.sold <= plan.stock)
}

async fn send_customers(args: &LoadArgs, common: &Common) -> Result<bool> {
    let crowd = load::Crowd {
        to: args.to.clone(),
        customers: common.customers,
        rounds: Some(common.rounds),
        products: args.products,
        timeout: Duration::from_secs(60),
    };
    let (tally, live) = (load::Tally::new(), Live::for_terminal());
    let counting = live.count(&tally, common.customers, common.rounds);
    let numbers = load::run(&crowd, &tally).await?;
    drop(counting);
    live.end_bar();
    if args.json {
        println!("{}", serde_json::to_string(&numbers)?);
    } else {
        println!("{}", numbers.told());
    }
    Ok(!numbers.failures.is_empty() || numbers.off_littles_law() <= 0.05)
}
