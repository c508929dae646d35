"""Keeps the generated requests on this machine."""

import schemathesis


@schemathesis.hook
def map_body(context, body):
    """Registering a host dials it: let that be a port on which nobody listens."""
    if context.operation.definition.raw.get("operationId") == "registerHost" and isinstance(body, dict):
        if isinstance(body.get("url"), str) and body["url"].startswith(("http://", "https://")):
            body = {**body, "url": "http://127.0.0.1:1"}
        # Fully declared, it would be taken without its agent, and environments placed there.
        body.pop("capacity", None)
    return body
