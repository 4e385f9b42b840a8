"""The words of the native API: what goes over the wire between a gateway and the remote client, and nothing else.

`gateway.native` fills these types, `dibs.remote` reads them; the OpenAPI document is written from them. They know no
ledger and no backend. Times are seconds since the epoch. What is unset is left out; what is not listed is not said: no
secret, no handle, no process id of the gateway.
"""
