//! An engine that counts how often claims look into it, and otherwise does what the one inside does.

use redrive::domain::{Settings, Timestamp};
use redrive::queue::{Call, Host, Reply, Verb, View, Viewed};
use redrive::store::{Health, Result};
use tokio::sync::watch;

#[derive(Debug)]
pub(crate) struct Counting<H> {
    inner: H,
    looks: watch::Sender<usize>,
}

impl<H> Counting<H> {
    pub(crate) fn new(inner: H) -> Self {
        Self { inner, looks: watch::Sender::new(0) }
    }

    /// Claims that have looked so far.
    pub(crate) fn looks(&self) -> usize {
        *self.looks.borrow()
    }

    /// Resolves once so many claims have looked. What is sent to the engine after that comes after them.
    pub(crate) async fn looked(&self, times: usize) {
        let mut looks = self.looks.subscribe();
        looks.wait_for(|looks| *looks >= times).await.expect("the sender is here");
    }
}

impl<H: Host> Host for Counting<H> {
    fn now(&self) -> Timestamp {
        self.inner.now()
    }

    fn follow(&self, settings: &Settings) {
        self.inner.follow(settings);
    }

    fn submit(&self, call: Call, reply: Reply) -> Result<()> {
        let claims = matches!(call.verb, Verb::Claim(_));
        self.inner.submit(call, reply)?;
        if claims {
            self.looks.send_modify(|looks| *looks += 1);
        }
        Ok(())
    }

    async fn view(&self, view: View) -> Result<Viewed> {
        self.inner.view(view).await
    }

    fn health(&self) -> Health {
        self.inner.health()
    }

    fn warnings(&self) -> Vec<String> {
        self.inner.warnings()
    }

    fn outages(&self) -> u64 {
        self.inner.outages()
    }

    async fn close(&self) {
        self.inner.close().await;
    }
}
