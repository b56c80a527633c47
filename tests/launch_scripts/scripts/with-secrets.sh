#!/bin/bash
#SBATCH --partition=p --export=ALL,WANDB_API_KEY=Zq7xMark --time=60
#SBATCH --comment=hf_Zq7xMark0123456789abcdefghijklmnop
T=hf_Zq7xMark0123456789abcdefghijklmnop
export JUDGE_PWD=Zq7xMark SLACK_WEBHOOK=https://hooks.invalid/Zq7xMark COOKIE=Zq7xMark JWT=Zq7xMark HF_TOKEN=Zq7xMark
export OSS_AK=Zq7xMark OSS_SK=Zq7xMark SLACK_URL=https://hooks.slack.com/services/T0/B0/Zq7xMark
export FEISHU=https://open.feishu.cn/open-apis/bot/v2/hook/Zq7xMark
docker login -u me -p Zq7xMark reg
sshpass -p Zq7xMark true
export HTTPS_PROXY=http://Zq7xMark@proxy:3128 JUDGE_URL="https://h/v1?api_key=Zq7xMark" TOKENIZERS_PARALLELISM=true
export NCCL_DEBUG=WARN JUDGE_ARGS="--token Zq7xMark"
wandb login Zq7xMark
source login.sh --password Zq7xMark
ml a/$T
export PATH=/x/$T:$PATH
curl -u me:Zq7xMark https://h
WANDB_API_KEY=Zq7xMark python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_files=d.parquet data.prompt_key=question \
  actor_rollout_ref.model.path=/m actor_rollout_ref.rollout.name=vllm +reward.judge_pass=Zq7xMark \
  +reward.ak=Zq7xMark +reward.password=$T +custom_reward_function.reward_kwargs.token=Zq7xMark \
  +reward.sk=Zq7xMark +reward.tg=https://api.telegram.org/bot123456:Zq7xMark/sendMessage \
  +reward.url=https://h/v1?api_key=Zq7xMark +trainer.huggingface_token=Zq7xMark +trainer.cookie=Zq7xMark \
  +reward.args="'--token Zq7xMark'" +reward.kwargs="{api_key: Zq7xMark}" \
  +reward.headers="'Authorization: Bearer Zq7xMark1'" \
  +reward.note=sk-Zq7xMark0123456789abcdefgh
