//! Creates an environment, runs a command in it, and destroys it.
//!
//! ```sh
//! FUSE_BASE_URL=http://127.0.0.1:8080 FUSE_TOKEN=… cargo run -p fuse-client --example exec -- uname -a
//! ```

#![expect(clippy::print_stdout, reason = "it is what the example shows")]

use fuse_client::api::{CreateEnvironment, ExecRequest};
use fuse_client::{BaseUrl, Client, Error, Options, Token};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let base = BaseUrl::parse(&std::env::var("FUSE_BASE_URL")?)?;
    let token = std::env::var("FUSE_TOKEN").ok().map(Token::new);
    let client = Client::new(Options::new(base, token, "fuse-example/1"))?;

    let request = CreateEnvironment {
        task_id: "example-exec".to_owned(),
        ..CreateEnvironment::default()
    };
    let environment = client.create(&request).await?;
    let outcome = run(&client, &environment.id).await;
    // Also when the command failed: nothing else destroys it.
    client.destroy(&environment.id).await?;
    outcome?;
    Ok(())
}

async fn run(client: &Client, id: &str) -> Result<(), Error> {
    let request = ExecRequest {
        cmd: std::env::args().skip(1).collect(),
        ..ExecRequest::default()
    };
    let answer = client.exec(id, &request).await?;
    print!("{}", answer.stdout);
    eprint!("{}", answer.stderr);
    println!("exit status {}", answer.exit_code);
    Ok(())
}
