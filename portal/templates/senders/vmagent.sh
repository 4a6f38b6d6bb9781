vmagent -promscrape.config=/etc/vmagent/scrape.yml \
  -remoteWrite.url={{ url }}/api/v1/prom/write \
  -remoteWrite.bearerToken={{ secret }}{% if ca_file %} \
  -remoteWrite.tlsCAFile={{ ca_file }}{% endif %}
