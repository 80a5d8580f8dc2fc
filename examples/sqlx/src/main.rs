//! A small shop: `cargo run -- postgres://USER:PASSWORD@HOST/DATABASE`. Makes a table `product` there, and drops one that is.

use fencelock::Locks;
use fencelock_with_sqlx::{Error, prepare, restock, sell};
use sqlx::postgres::PgPoolOptions;

#[tokio::main]
async fn main() -> Result<(), Error> {
    let url = std::env::args().nth(1).ok_or("the URL of a database, please")?;
    let pool = PgPoolOptions::new().max_connections(8).connect(&url).await?;
    prepare(&url, &pool, 20).await?;

    let buyers: Vec<_> = (0..30)
        .map(|_| {
            let pool = pool.clone();
            tokio::spawn(async move { sell(&pool, 42).await })
        })
        .collect();
    let mut sold = 0;
    for buyer in buyers {
        sold += i32::from(buyer.await??);
    }
    println!("30 buyers, 20 pieces: {sold} sold");

    let locks = Locks::connect(&url).await?;
    let guard = locks.mutex("stock/42").lock().await?;
    println!("restocked by {}: {}", guard.token(), restock(&pool, 42, 5, &guard.token()).await?);
    guard.release().await?;
    Ok(())
}
