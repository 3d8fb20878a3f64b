//! A TCP proxy that stops forwarding while its connections stay open: a partition. (A process that is stopped is none: the kernel keeps
//! what it is sent, and hands it over later.)

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    Nothing,
    /// Replicas and sentinels are cut off, clients are not: the primary lives on among its clients.
    Servers,
    /// What clients ask arrives; no answer does.
    Answers,
    Everything,
}

pub struct Proxy {
    pub port: u16,
    cut: watch::Sender<Cut>,
    _task: AbortOnDropHandle<()>,
}

impl Proxy {
    /// In front of a port of this machine.
    pub async fn start(port: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let (cut, cuts) = watch::channel(Cut::Nothing);
        let target = SocketAddr::from(([127, 0, 0, 1], port));
        let accepting = async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(carry(stream, target, cuts.clone()));
            }
        };
        Proxy {
            port: own,
            cut,
            _task: AbortOnDropHandle::new(tokio::spawn(accepting)),
        }
    }

    pub fn cut(&self, cut: Cut) {
        self.cut.send_replace(cut);
    }
}

async fn carry(near: TcpStream, target: SocketAddr, cuts: watch::Receiver<Cut>) {
    let _ = near.set_nodelay(true);
    // Clients of ours begin with HELLO; replicas and sentinels never say it.
    let mut first = [0; 256];
    let Ok(seen) = near.peek(&mut first).await else {
        return;
    };
    let client = first[..seen].windows(5).any(|word| word == b"HELLO");
    let Ok(far) = TcpStream::connect(target).await else {
        return;
    };
    let _ = far.set_nodelay(true);
    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
    let asked = move |cut: &Cut| match cut {
        Cut::Nothing | Cut::Answers => true,
        Cut::Servers => client,
        Cut::Everything => false,
    };
    let answered = move |cut: &Cut| asked(cut) && *cut != Cut::Answers;
    let there = forward(near_in, far_out, asked, cuts.clone());
    let back = forward(far_in, near_out, answered, cuts);
    // When one side is gone, so is the other.
    tokio::select! { () = there => {}, () = back => {} }
}

async fn forward(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    passes: impl Fn(&Cut) -> bool,
    mut cuts: watch::Receiver<Cut>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        if !passes(&cuts.borrow_and_update()) {
            // What was on its way is lost, not late: nothing here or in the kernel's buffers may arrive when the cut is over.
            let _ = cuts.wait_for(&passes).await;
            return;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
