//! The table of the API: every route with its permission. The router, the check of permissions, idempotency, the log and the OpenAPI
//! page all follow from it.

use std::sync::Arc;

use axum::routing::{MethodRouter, get, post};

use super::caller::{Access, Module};
use super::confirm::Confirms;
use super::webhooks::deliveries;
use super::{
    Admin, accounts, dead_letters, keys, live, log, pipeline, preview, rains, schedules, templates,
    webhooks, winners,
};

/// What a route is about, named by the first parameter of its path: the log says it, and shows it as it was before a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Nothing,
    Rain,
    Sponsor,
    Account,
    Packet,
    Template,
    Schedule,
    Key,
    Webhook,
    Delivery,
}

/// One line of the table. A route with [`Access::Write`] needs an idempotency key and is logged.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub method: &'static str,
    /// As axum and OpenAPI write it.
    pub path: &'static str,
    /// Its name in the log and in OpenAPI.
    pub operation: &'static str,
    pub module: Module,
    pub access: Access,
    pub target: Target,
    /// Whether it is asked for twice.
    pub confirms: Confirms,
    /// Its answer holds a credential, which is not kept.
    pub gives_credential: bool,
    /// With the query dry_run=true it says what it would do, and does nothing.
    pub rehearses: bool,
}

type Handler = MethodRouter<Arc<Admin>>;

/// The table.
pub fn all() -> Vec<(Route, Handler)> {
    use Module::{Accounts, Audits, DeadLetters, Keys, Rains, Webhooks};
    use Target::{
        Account, Delivery, Key, Nothing, Packet, Rain, Schedule, Sponsor, Template, Webhook,
    };
    #[rustfmt::skip]
    let table = vec![
        read("/v1/accounts", "list_accounts", Accounts, Nothing, get(accounts::list)),
        write("/v1/accounts", "create_sponsor", Accounts, Nothing, post(accounts::create)),
        read("/v1/accounts/{name}", "show_account", Accounts, Account, get(accounts::show)),
        write("/v1/accounts/{name}/deposits", "deposit", Accounts, Sponsor, post(accounts::deposit)).confirms(Confirms::Always),
        read("/v1/rains", "list_rains", Rains, Nothing, get(rains::list)),
        write("/v1/rains", "create_rain", Rains, Nothing, post(rains::create)).or_rehearse().confirms(Confirms::LargeAmounts),
        ask("/v1/rains/preview", "preview_rain", Rains, Nothing, post(preview::preview)),
        read("/v1/rains/{id}", "show_rain", Rains, Rain, get(rains::show)),
        write("/v1/rains/{id}/announce", "announce_rain", Rains, Rain, post(rains::announce)),
        write("/v1/rains/{id}/open", "open_rain", Rains, Rain, post(rains::open)),
        write("/v1/rains/{id}/pause", "pause_rain", Rains, Rain, post(rains::pause)),
        write("/v1/rains/{id}/resume", "resume_rain", Rains, Rain, post(rains::resume)),
        write("/v1/rains/{id}/top-up", "top_up_rain", Rains, Rain, post(rains::top_up)).confirms(Confirms::Always),
        write("/v1/rains/{id}/close", "close_rain", Rains, Rain, post(rains::close)).confirms(Confirms::Always),
        read("/v1/rains/{id}/audit", "audit_rain", Audits, Rain, get(rains::audit)),
        write("/v1/rains/{id}/repair", "repair_rain", Audits, Rain, post(rains::repair)),
        read("/v1/rains/{id}/live", "watch_rain", Rains, Rain, get(live::stream)),
        read("/v1/rains/{id}/winners", "list_winners", Rains, Rain, get(winners::list)),
        read("/v1/rains/{id}/winners.csv", "winners_as_csv", Rains, Rain, get(winners::csv)),
        read("/v1/rains/{id}/winners.ndjson", "winners_as_ndjson", Rains, Rain, get(winners::ndjson)),
        read("/v1/templates", "list_templates", Rains, Nothing, get(templates::list)),
        write("/v1/templates", "create_template", Rains, Nothing, post(templates::create)),
        read("/v1/templates/{name}", "show_template", Rains, Template, get(templates::show)),
        write("/v1/templates/{name}/update", "update_template", Rains, Template, post(templates::update)),
        write("/v1/templates/{name}/delete", "delete_template", Rains, Template, post(templates::delete)),
        write("/v1/templates/{name}/rains", "create_rain_from_template", Rains, Template, post(templates::create_rain)).confirms(Confirms::LargeAmounts),
        read("/v1/schedules", "list_schedules", Rains, Nothing, get(schedules::list)),
        write("/v1/schedules", "create_schedule", Rains, Nothing, post(schedules::create)).confirms(Confirms::LargeAmounts),
        read("/v1/schedules/{id}", "show_schedule", Rains, Schedule, get(schedules::show)),
        write("/v1/schedules/{id}/end", "end_schedule", Rains, Schedule, post(schedules::end)),
        read("/v1/pipeline", "show_pipeline", Rains, Nothing, get(pipeline::show)),
        read("/v1/dead-letters", "list_dead_letters", DeadLetters, Nothing, get(dead_letters::list)),
        write("/v1/dead-letters/requeue", "requeue_dead_letters", DeadLetters, Nothing, post(dead_letters::requeue_all)),
        read("/v1/dead-letters/{packet}", "show_dead_letter", DeadLetters, Packet, get(dead_letters::show)),
        write("/v1/dead-letters/{packet}/requeue", "requeue_dead_letter", DeadLetters, Packet, post(dead_letters::requeue)),
        write("/v1/dead-letters/{packet}/discard", "discard_dead_letter", DeadLetters, Packet, post(dead_letters::discard)).confirms(Confirms::Always),
        read("/v1/keys", "list_keys", Keys, Nothing, get(keys::list)),
        write("/v1/keys", "create_key", Keys, Nothing, post(keys::create)).with_credential(),
        read("/v1/keys/{id}", "show_key", Keys, Key, get(keys::show)),
        write("/v1/keys/{id}/rotate", "rotate_key", Keys, Key, post(keys::rotate)).with_credential(),
        write("/v1/keys/{id}/revoke", "revoke_key", Keys, Key, post(keys::revoke)),
        read("/v1/webhooks", "list_webhooks", Webhooks, Nothing, get(webhooks::list)),
        write("/v1/webhooks", "create_webhook", Webhooks, Nothing, post(webhooks::create)).with_credential(),
        read("/v1/webhooks/{id}", "show_webhook", Webhooks, Webhook, get(webhooks::show)),
        write("/v1/webhooks/{id}", "change_webhook", Webhooks, Webhook, post(webhooks::change)),
        write("/v1/webhooks/{id}/rotate", "rotate_webhook", Webhooks, Webhook, post(webhooks::rotate)).with_credential(),
        write("/v1/webhooks/{id}/delete", "delete_webhook", Webhooks, Webhook, post(webhooks::delete)),
        write("/v1/webhooks/{id}/test", "test_webhook", Webhooks, Webhook, post(webhooks::test)),
        read("/v1/deliveries", "list_deliveries", Webhooks, Nothing, get(deliveries::list)),
        write("/v1/deliveries/resend", "resend_failed_deliveries", Webhooks, Nothing, post(deliveries::resend_failed)),
        read("/v1/deliveries/{id}", "show_delivery", Webhooks, Delivery, get(deliveries::show)),
        write("/v1/deliveries/{id}/resend", "resend_delivery", Webhooks, Delivery, post(deliveries::resend)),
        read("/v1/log", "list_log", Audits, Nothing, get(log::list)),
    ];
    table
        .into_iter()
        .map(|entry| (entry.route, entry.handler))
        .collect()
}

struct Entry {
    route: Route,
    handler: Handler,
}

fn read(
    path: &'static str,
    operation: &'static str,
    module: Module,
    target: Target,
    handler: Handler,
) -> Entry {
    let route = Route {
        method: "GET",
        path,
        operation,
        module,
        access: Access::Read,
        target,
        confirms: Confirms::Never,
        gives_credential: false,
        rehearses: false,
    };
    Entry { route, handler }
}

/// A question that needs a body.
fn ask(
    path: &'static str,
    operation: &'static str,
    module: Module,
    target: Target,
    handler: Handler,
) -> Entry {
    let mut entry = read(path, operation, module, target, handler);
    entry.route.method = "POST";
    entry
}

fn write(
    path: &'static str,
    operation: &'static str,
    module: Module,
    target: Target,
    handler: Handler,
) -> Entry {
    let mut entry = ask(path, operation, module, target, handler);
    entry.route.access = Access::Write;
    entry
}

impl Entry {
    fn confirms(mut self, confirms: Confirms) -> Entry {
        self.route.confirms = confirms;
        self
    }

    fn or_rehearse(mut self) -> Entry {
        self.route.rehearses = true;
        self
    }

    fn with_credential(mut self) -> Entry {
        self.route.gives_credential = true;
        self
    }
}
