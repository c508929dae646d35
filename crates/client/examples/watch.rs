//! Creates an environment without waiting for it, follows it until it runs, and destroys it.
//!
//! ```sh
//! FUSE_BASE_URL=http://127.0.0.1:8080 FUSE_TOKEN=… cargo run -p fuse-client --example watch
//! ```

#![expect(clippy::print_stdout, reason = "it is what the example shows")]

use fuse_client::api::CreateEnvironment;
use fuse_client::{BaseUrl, Client, Options, Token};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base = BaseUrl::parse(&std::env::var("FUSE_BASE_URL")?)?;
    let token = std::env::var("FUSE_TOKEN").ok().map(Token::new);
    let client = Client::new(Options::new(base, token, "fuse-example/1"))?;

    let request = CreateEnvironment {
        task_id: "example-watch".to_owned(),
        ..CreateEnvironment::default()
    };
    let created = client.create_in_background(&request).await?;
    let id = created.environment.id;
    // The first event is the state as it is now, so that nothing is missed.
    let mut events = client.events(&id).await?;
    while let Some(event) = events.next().await? {
        println!("{} {} {}", event.vm_id, event.state, event.error);
        if event.state == "running" {
            client.destroy(&id).await?;
        }
    }
    Ok(())
}
