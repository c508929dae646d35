//! Lists all environments, a page at a time.
//!
//! ```sh
//! FUSE_BASE_URL=http://127.0.0.1:8080 FUSE_TOKEN=… cargo run -p fuse-client --example list
//! ```

#![expect(clippy::print_stdout, reason = "it is what the example shows")]

use fuse_client::api::ListEnvironments;
use fuse_client::{BaseUrl, Client, Options, Token};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base = BaseUrl::parse(&std::env::var("FUSE_BASE_URL")?)?;
    let token = std::env::var("FUSE_TOKEN").ok().map(Token::new);
    let client = Client::new(Options::new(base, token, "fuse-example/1"))?;

    let mut query = ListEnvironments {
        limit: Some("2".to_owned()),
        ..ListEnvironments::default()
    };
    loop {
        let page = client.environments(&query).await?;
        for environment in page.environments {
            println!("{} {}", environment.id, environment.state);
        }
        // Absent on the last page.
        query.cursor = page.next_cursor;
        if query.cursor.is_none() {
            return Ok(());
        }
    }
}
