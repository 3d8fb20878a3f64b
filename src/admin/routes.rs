//! The table of the API: every route with its permission. The router, the check of permissions, idempotency, the log and the OpenAPI
//! page all follow from it.

use std::sync::Arc;

use axum::routing::{MethodRouter, get, post};

use super::caller::{Access, Module};
use super::confirm::Confirms;
use super::webhooks::deliveries;
use super::{
    Admin, accounts, dead_letters, keys, live, log, nodes, pipeline, preview, rains, schedules,
    templates, webhooks, winners,
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
    /// What it makes, named by the answer's id or name: what the log is about then.
    pub makes: Target,
    /// Whether it is asked for twice.
    pub confirms: Confirms,
    /// Its answer holds a credential, which is not kept.
    pub gives_credential: bool,
    /// With the query dry_run=true it says what it would do, and does nothing.
    pub rehearses: bool,
    /// What it does, in a sentence.
    pub summary: &'static str,
    /// The schema of its body, if it takes one.
    pub takes: Option<&'static str>,
    pub gives: Gives,
    /// Parameters of its query; see `schemas.json`.
    pub query: &'static [&'static str],
}

/// What a route answers when all is well.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gives {
    /// JSON with this status and of this schema.
    Json(u16, &'static str),
    /// A body without end, of this media type.
    Stream(&'static str),
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
        read("/v1/accounts", "list_accounts", Accounts, Nothing, get(accounts::list))
            .says("Balances by name").gives(200, "Accounts").query(&["prefix", "limit", "cursor"]),
        write("/v1/accounts", "create_sponsor", Accounts, Nothing, post(accounts::create)).makes(Account)
            .says("Opens a sponsor's account, or finds it").takes("NewSponsor").gives(201, "Account"),
        read("/v1/accounts/{name}", "show_account", Accounts, Account, get(accounts::show))
            .says("One balance").gives(200, "Account"),
        read("/v1/accounts/{name}/statement", "show_statement", Accounts, Account, get(accounts::statement))
            .says("The lines of one account, newest first").gives(200, "Statement").query(&["limit", "cursor"]),
        write("/v1/accounts/{name}/deposits", "deposit", Accounts, Sponsor, post(accounts::deposit)).confirms(Confirms::Always)
            .says("Records money that a sponsor has paid in").takes("Deposit").gives(200, "Account"),
        read("/v1/rains", "list_rains", Rains, Nothing, get(rains::list))
            .says("All rains, newest first").gives(200, "Rains").query(&["limit", "cursor"]),
        write("/v1/rains", "create_rain", Rains, Nothing, post(rains::create)).makes(Rain).or_rehearse().confirms(Confirms::LargeAmounts)
            .says("Creates and funds a rain").takes("NewRain").gives(201, "Rain"),
        ask("/v1/rains/preview", "preview_rain", Rains, Nothing, post(preview::preview))
            .says("What a split looks like, with a seed that is thrown away").takes("NewRain").gives(200, "Preview"),
        read("/v1/rains/{id}", "show_rain", Rains, Rain, get(rains::show))
            .says("One rain with its live numbers").gives(200, "Rain"),
        write("/v1/rains/{id}/announce", "announce_rain", Rains, Rain, post(rains::announce))
            .says("Tells its room of it now, whatever was planned").gives(200, "Rain"),
        write("/v1/rains/{id}/open", "open_rain", Rains, Rain, post(rains::open))
            .says("Opens it now").gives(200, "Rain"),
        write("/v1/rains/{id}/pause", "pause_rain", Rains, Rain, post(rains::pause))
            .says("Gives nothing until it is resumed").gives(200, "Rain"),
        write("/v1/rains/{id}/resume", "resume_rain", Rains, Rain, post(rains::resume))
            .says("Goes on after a pause").gives(200, "Rain"),
        write("/v1/rains/{id}/top-up", "top_up_rain", Rains, Rain, post(rains::top_up)).confirms(Confirms::Always)
            .says("Adds packets and money").takes("NewTopUp").gives(201, "ToppedUp"),
        write("/v1/rains/{id}/close", "close_rain", Rains, Rain, post(rains::close)).confirms(Confirms::Always)
            .says("Shuts every gate and refunds what is left").gives(200, "Rain"),
        read("/v1/rains/{id}/audit", "audit_rain", Audits, Rain, get(rains::audit))
            .says("Finds every packet in exactly one place, or says which are not").gives(200, "Audit"),
        write("/v1/rains/{id}/repair", "repair_rain", Audits, Rain, post(rains::repair))
            .says("Compares suspect buckets with the ledger").takes("RepairOf").gives(200, "Repaired"),
        read("/v1/rains/{id}/live", "watch_rain", Rains, Rain, get(live::stream))
            .says("Live numbers as server-sent events, until it is over").streams("text/event-stream"),
        read("/v1/rains/{id}/winners", "list_winners", Rains, Rain, get(winners::list))
            .says("Credited winners by packet id").gives(200, "Winners").query(&["limit", "cursor"]),
        read("/v1/rains/{id}/winners.csv", "winners_as_csv", Rains, Rain, get(winners::csv))
            .says("All credited winners for a spreadsheet").streams("text/csv"),
        read("/v1/rains/{id}/winners.ndjson", "winners_as_ndjson", Rains, Rain, get(winners::ndjson))
            .says("All credited winners, one JSON object a line").streams("application/x-ndjson"),
        read("/v1/templates", "list_templates", Rains, Nothing, get(templates::list))
            .says("Rains by name").gives(200, "Templates").query(&["limit", "cursor"]),
        write("/v1/templates", "create_template", Rains, Nothing, post(templates::create)).makes(Template)
            .says("Keeps a rain under a name, without times").takes("NewTemplate").gives(201, "Template"),
        read("/v1/templates/{name}", "show_template", Rains, Template, get(templates::show))
            .says("One template").gives(200, "Template"),
        write("/v1/templates/{name}/update", "update_template", Rains, Template, post(templates::update)).confirms(Confirms::LargeAmounts)
            .says("Puts another rain under the name").takes("ChangedTemplate").gives(200, "Template"),
        write("/v1/templates/{name}/delete", "delete_template", Rains, Template, post(templates::delete))
            .says("Forgets a template that no schedule uses").gives(200, "Deleted"),
        write("/v1/templates/{name}/rains", "create_rain_from_template", Rains, Template, post(templates::create_rain)).confirms(Confirms::LargeAmounts)
            .says("Creates and funds a rain; fields of the body take the place of the template's, null takes one away").takes("Overrides").gives(201, "Rain"),
        read("/v1/schedules", "list_schedules", Rains, Nothing, get(schedules::list))
            .says("Templates with opening times, newest first").gives(200, "Schedules").query(&["limit", "cursor"]),
        write("/v1/schedules", "create_schedule", Rains, Nothing, post(schedules::create)).makes(Schedule).confirms(Confirms::LargeAmounts)
            .says("Has a rain created for each opening").takes("NewSchedule").gives(201, "Schedule"),
        read("/v1/schedules/{id}", "show_schedule", Rains, Schedule, get(schedules::show))
            .says("One schedule with what became of its openings").gives(200, "Schedule"),
        write("/v1/schedules/{id}/end", "end_schedule", Rains, Schedule, post(schedules::end))
            .says("Creates no more rains; those that it created stay").gives(200, "Schedule"),
        read("/v1/pipeline", "show_pipeline", Rains, Nothing, get(pipeline::show))
            .says("How claims flow").gives(200, "Pipeline"),
        read("/v1/nodes", "list_nodes", Rains, Nothing, get(nodes::show))
            .says("Ledger and nodes, and what is wrong with them").gives(200, "Nodes"),
        read("/v1/dead-letters", "list_dead_letters", DeadLetters, Nothing, get(dead_letters::list))
            .says("Claims that wait for a person, by packet id").gives(200, "DeadLetters").query(&["rain", "reason", "limit", "cursor"]),
        write("/v1/dead-letters/requeue", "requeue_dead_letters", DeadLetters, Nothing, post(dead_letters::requeue_all))
            .says("Has the settlers try all of them again").takes("WhichDeadLetters").gives(200, "Requeued"),
        read("/v1/dead-letters/{packet}", "show_dead_letter", DeadLetters, Packet, get(dead_letters::show))
            .says("One dead letter").gives(200, "DeadLetter"),
        write("/v1/dead-letters/{packet}/requeue", "requeue_dead_letter", DeadLetters, Packet, post(dead_letters::requeue))
            .says("Has the settlers try it again").gives(200, "Requeued"),
        write("/v1/dead-letters/{packet}/discard", "discard_dead_letter", DeadLetters, Packet, post(dead_letters::discard)).confirms(Confirms::Always)
            .says("Gives its money back to the sponsor, for good").takes("Why").gives(200, "Discarded"),
        read("/v1/keys", "list_keys", Keys, Nothing, get(keys::list))
            .says("Keys by id, those that are revoked too").gives(200, "Keys").query(&["limit", "cursor"]),
        write("/v1/keys", "create_key", Keys, Nothing, post(keys::create)).makes(Key).with_credential()
            .says("Makes a key").takes("NewKey").gives(201, "IssuedKey"),
        read("/v1/keys/{id}", "show_key", Keys, Key, get(keys::show))
            .says("One key").gives(200, "Key"),
        write("/v1/keys/{id}/rotate", "rotate_key", Keys, Key, post(keys::rotate)).with_credential()
            .says("Gives a key a new secret; the old one stays good for a while").takes("Overlap").gives(200, "IssuedKey"),
        write("/v1/keys/{id}/revoke", "revoke_key", Keys, Key, post(keys::revoke))
            .says("Ends a key, for good").gives(200, "Key"),
        read("/v1/webhooks", "list_webhooks", Webhooks, Nothing, get(webhooks::list))
            .says("Servers that are told what happens, by id").gives(200, "Webhooks"),
        write("/v1/webhooks", "create_webhook", Webhooks, Nothing, post(webhooks::create)).makes(Webhook).with_credential()
            .says("Has a server told what happens").takes("NewWebhook").gives(201, "IssuedWebhook"),
        read("/v1/webhooks/{id}", "show_webhook", Webhooks, Webhook, get(webhooks::show))
            .says("One webhook").gives(200, "Webhook"),
        write("/v1/webhooks/{id}/update", "update_webhook", Webhooks, Webhook, post(webhooks::change))
            .says("Another address, other events, disabled or enabled").takes("WebhookChange").gives(200, "Webhook"),
        write("/v1/webhooks/{id}/rotate", "rotate_webhook", Webhooks, Webhook, post(webhooks::rotate)).with_credential()
            .says("Gives a webhook a new secret; for a while the old one signs, too").takes("Overlap").gives(200, "IssuedWebhook"),
        write("/v1/webhooks/{id}/delete", "delete_webhook", Webhooks, Webhook, post(webhooks::delete))
            .says("Ends a webhook, for good; what is pending for it is not sent").gives(200, "Webhook"),
        write("/v1/webhooks/{id}/test", "test_webhook", Webhooks, Webhook, post(webhooks::test))
            .says("Sends webhook.test, soon").gives(202, "Delivery"),
        read("/v1/deliveries", "list_deliveries", Webhooks, Nothing, get(deliveries::list))
            .says("What was sent and what is to be sent, newest first").gives(200, "Deliveries").query(&["state", "webhook", "limit", "cursor"]),
        write("/v1/deliveries/resend", "resend_failed_deliveries", Webhooks, Nothing, post(deliveries::resend_failed))
            .says("Sends all again that have failed").takes("WhichDeliveries").gives(200, "Resent"),
        read("/v1/deliveries/{id}", "show_delivery", Webhooks, Delivery, get(deliveries::show))
            .says("One delivery with what was sent and every try").gives(200, "DeliveryDetail"),
        write("/v1/deliveries/{id}/resend", "resend_delivery", Webhooks, Delivery, post(deliveries::resend))
            .says("Sends one again, whatever its state").gives(200, "Delivery"),
        read("/v1/log", "list_log", Audits, Nothing, get(log::list))
            .says("Who did what, newest first").gives(200, "Log").query(&["target", "limit", "cursor"]),
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
        makes: Target::Nothing,
        confirms: Confirms::Never,
        gives_credential: false,
        rehearses: false,
        summary: "",
        takes: None,
        gives: Gives::Stream("text/plain"),
        query: &[],
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
    fn says(mut self, summary: &'static str) -> Entry {
        self.route.summary = summary;
        self
    }

    fn takes(mut self, schema: &'static str) -> Entry {
        self.route.takes = Some(schema);
        self
    }

    fn gives(mut self, status: u16, schema: &'static str) -> Entry {
        self.route.gives = Gives::Json(status, schema);
        self
    }

    fn streams(mut self, media_type: &'static str) -> Entry {
        self.route.gives = Gives::Stream(media_type);
        self
    }

    fn query(mut self, names: &'static [&'static str]) -> Entry {
        self.route.query = names;
        self
    }

    fn makes(mut self, target: Target) -> Entry {
        self.route.makes = target;
        self
    }

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
