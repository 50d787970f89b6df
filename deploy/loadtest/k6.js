// Sends the requests of `mix.py` at a steady rate, and counts how each was answered.
//
//   python3 deploy/loadtest/mix.py > requests.jsonl
//   k6 run --no-usage-report -e REQUESTS=$PWD/requests.jsonl -e RATE=20 -e DURATION=1m deploy/loadtest/k6.js
//
// k6 reads a stream as a whole: `http_req_waiting` is the time to its first byte, `http_req_duration` that of all of it.

import exec from 'k6/execution';
import http from 'k6/http';
import { check } from 'k6';
import { Rate } from 'k6/metrics';
import { SharedArray } from 'k6/data';

const prompts = new SharedArray('prompts', () =>
  open(__ENV.REQUESTS || '../../requests.jsonl').trim().split('\n').map((line) => JSON.parse(line).prompt));
const url = `${__ENV.HOST || 'http://127.0.0.1:8080'}/v1/chat/completions`;
const headers = { 'Content-Type': 'application/json', Authorization: `Bearer ${__ENV.API_KEY || 'load-test'}` };

const hit = new Rate('hit');
const semantic = new Rate('semantic_hit');

export const options = {
  scenarios: {
    chat: {
      executor: 'constant-arrival-rate',
      rate: Number(__ENV.RATE || 20),
      duration: __ENV.DURATION || '1m',
      preAllocatedVUs: 50,
      maxVUs: 500,
    },
  },
  thresholds: { http_req_failed: ['rate<0.01'], checks: ['rate>0.99'] },
  summaryTrendStats: ['med', 'p(99)', 'max'],
};

export default function () {
  const prompt = prompts[exec.scenario.iterationInTest % prompts.length];
  const body = { model: __ENV.MODEL || 'gpt-4o-mini', stream: true, messages: [{ role: 'user', content: prompt }] };
  const response = http.post(url, JSON.stringify(body), { headers });
  const status = response.headers['Cache-Status'] || '';
  hit.add(status.includes('; hit'));
  semantic.add(status.includes('detail=semantic'));
  check(response, { 'the stream is whole': (it) => it.status === 200 && it.body.includes('data: [DONE]') });
}
